// Links out of content that others wrote.
import type { ComponentChildren } from "preact";

import { visible } from "../base/format";

/** A link that can be followed if it leads to a web page or a mailbox, else its text and address. */
export function Link({ url, children }: { url: string; children?: ComponentChildren }) {
  if (!/^(https?:\/\/|mailto:)/i.test(url)) {
    return (
      <>
        {children ?? null} <span class="muted">{visible(url)}</span>
      </>
    );
  }
  return (
    <a href={url} target="_blank" rel="noopener noreferrer" title={url}>
      {children ?? visible(url)}
    </a>
  );
}
