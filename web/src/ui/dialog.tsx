// Modal dialogs.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { asProblem } from "../base/query";

export function Dialog({
  title,
  onClose,
  children,
  wide = false,
  firm = false,
}: {
  title: string;
  onClose?: () => void;
  children: ComponentChildren;
  wide?: boolean;
  /** Cannot be dismissed. */
  firm?: boolean;
}) {
  const element = useRef<HTMLDialogElement>(null);
  // Before painting, so that a key pressed as soon as the dialog shows goes to it.
  useLayoutEffect(() => {
    element.current?.showModal();
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? "wide" : ""}
      aria-label={title}
      onClose={onClose}
      onCancel={(event) => {
        if (firm) event.preventDefault();
      }}
      onClick={(event) => {
        if (event.target === element.current && !firm) element.current?.close();
      }}
    >
      <div class="dialog-inside">
        <h2>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

/** Confirm an action, run it, and show its error; closes when it is done. */
export function Confirm({
  title,
  verb,
  danger = false,
  action,
  onClose,
  children,
}: {
  title: string;
  verb: string;
  danger?: boolean;
  action: () => Promise<void>;
  onClose: () => void;
  children?: ComponentChildren;
}) {
  const [busy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState("");
  return (
    <Dialog title={title} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setBusy(true);
          setTrouble("");
          action().then(onClose, (error: unknown) => {
            setTrouble(asProblem(error).message);
            setBusy(false);
          });
        }}
      >
        {children}
        {trouble && (
          <p class="trouble" role="alert">
            {trouble}
          </p>
        )}
        <p class="buttons">
          <button type="button" class="quiet" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class={danger ? "danger" : "primary"} disabled={busy}>
            {busy ? "…" : verb}
          </button>
        </p>
      </form>
    </Dialog>
  );
}
