// The application shell: navigation, connection status, keyboard shortcuts.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

import { locked, reachable, setKey, unreadable } from "./base/api";
import { plural } from "./base/format";
import { useKeys } from "./base/keys";
import { live } from "./base/live";
import { go, route } from "./base/route";
import { isDark, toggleTheme } from "./ui/colours";
import { Dialog } from "./ui/dialog";
import { Rings } from "./ui/rings";
import { Alone, Empty } from "./ui/states";
import { Compare } from "./views/compare";
import { Cost } from "./views/cost";
import { Approvals, Effects } from "./views/decisions";
import { Memory } from "./views/memory/memory";
import { Debugger } from "./views/run/debugger";
import { Reruns } from "./views/run/reruns";
import { Run } from "./views/run/run";
import { Runs } from "./views/runs";
import { Schedules } from "./views/schedules";
import { Store } from "./views/store";
import { Thread } from "./views/thread/thread";
import { Threads } from "./views/threads";
import { Snapshot, Workspace } from "./views/workspace/workspace";

const PLACES = [
  ["runs", "Runs", "r"],
  ["threads", "Threads", "t"],
  ["workspace", "Workspace", "w"],
  ["memory", "Memory", "m"],
  ["cost", "Cost", "c"],
  ["schedules", "Schedules", "s"],
  ["approvals", "Approvals", "a"],
  ["effects", "Effects", "e"],
  ["store", "Store", "o"],
] as const;

const HELP: readonly (readonly [string, readonly (readonly [string, string])[]])[] = [
  [
    "Everywhere",
    [
      ["/", "search"],
      ["j  k", "down, up (or the arrow keys)"],
      ["Enter", "open the selected item"],
      ["Esc", "back"],
      ["g r", "runs"],
      ["g t", "threads"],
      ["g w", "workspace"],
      ["g m", "memory"],
      ["g c", "cost"],
      ["g s", "schedules"],
      ["g a", "approvals"],
      ["g e", "effects"],
      ["g o", "store"],
      ["d", "toggle light and dark"],
      ["?", "show this help"],
    ],
  ],
  [
    "Runs",
    [
      ["x", "select a run"],
      ["c", "compare selected runs"],
    ],
  ],
  [
    "Run",
    [
      ["1  2  3", "conversation, event, cost"],
      ["Space", "play or pause the replay"],
      ["[  ]", "previous, next event"],
      ["+  -  0", "zoom in, out, show the whole run"],
      ["z", "zoom to the selected span"],
      ["h  l", "pan left, right"],
      ["←  →", "collapse, expand a span"],
      ["C  E", "collapse all, expand all"],
    ],
  ],
  [
    "Steps of a run",
    [
      ["[  ]", "step back, forward (or the arrow keys)"],
      ["n  p", "continue to the next stop, back to the one before"],
      ["Home  End", "first, last step"],
    ],
  ],
  ["Memory", [["n", "new document"]]],
];

export function App() {
  const { path } = route.value;
  const [place = "runs", id, part] = path;
  const [helping, help] = useState(false);
  const [isOpen, setOpen] = useState(false);
  useKeys({
    ...Object.fromEntries(PLACES.map(([name, , key]) => [`g ${key}`, () => go([name])])),
    "?": () => help(true),
    d: toggleTheme,
  });
  useEffect(() => {
    const words = PLACES.find(([name]) => name === place)?.[1] ?? "treering";
    setOpen(false);
    document.title = id ? `${id} · ${words} · treering` : `${words} · treering`;
  }, [place, id]);
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        Skip to content
      </a>
      <nav class="side-nav" aria-label="Main">
        <a class="brand" href="#/runs" aria-label="treering home">
          <Rings count={3} size={30} />
          <span>treering</span>
        </a>
        <button
          type="button"
          class="menu"
          aria-expanded={isOpen}
          aria-controls="places"
          onClick={() => setOpen(!isOpen)}
        >
          <span class="hidden">Menu: </span>
          {PLACES.find(([name]) => isAt(name, place))?.[1] ?? "Menu"}
          <span class="arrow" aria-hidden="true" />
        </button>
        <ul id="places" class={isOpen ? "open" : undefined}>
          {PLACES.map(([name, words, key]) => (
            <li key={name}>
              <a href={`#/${name}`} aria-current={isAt(name, place) ? "page" : undefined} title={`g ${key}`}>
                {words}
              </a>
            </li>
          ))}
        </ul>
        <div class="foot">
          <span class={live.value ? "pulse on" : "pulse"} role="status">
            <i aria-hidden="true" />
            {live.value ? "Live" : "Offline"}
          </span>
          <button type="button" class="quiet" onClick={toggleTheme} title="d">
            {isDark.value ? "Light" : "Dark"}
          </button>
          <button type="button" class="quiet" onClick={() => help(true)} title="?" aria-label="Keyboard shortcuts">
            Shortcuts
          </button>
        </div>
      </nav>
      <main id="main" tabIndex={-1}>
        {!reachable.value && (
          <p class="banner" role="alert">
            Cannot reach the server. Showing the last known data; this page reconnects automatically.
          </p>
        )}
        {unreadable.value.length > 0 && (
          <div role="alert">
            <details class="banner">
              <summary>
                {plural(unreadable.value.length, "entry", "entries")} cannot be read and left out of the lists. Run{" "}
                <code>treering verify</code>.
              </summary>
              <ul>
                {unreadable.value.map((each) => (
                  <li key={each.path + each.name}>
                    <code>{each.name}</code> {each.problem}
                  </li>
                ))}
              </ul>
            </details>
          </div>
        )}
        <View place={place} id={id} part={part} />
      </main>
      {helping && <Help onClose={() => help(false)} />}
      {locked.value && <Unlock />}
    </>
  );
}

function isAt(name: string, place: string): boolean {
  return name === place || (name === "runs" && place === "compare");
}

function View({ place, id, part }: { place: string; id: string | undefined; part: string | undefined }): ComponentChildren {
  switch (place) {
    case "runs":
      if (id && part === "steps") return <Debugger key={id} id={id} />;
      if (id && part === "reruns") return <Reruns key={id} id={id} />;
      return id ? <Run key={id} id={id} /> : <Runs />;
    case "compare":
      return <Compare />;
    case "threads":
      return id ? <Thread key={id} id={id} /> : <Threads />;
    case "workspace":
      return id ? <Snapshot key={id} id={id} /> : <Workspace />;
    case "memory":
      return <Memory id={id} />;
    case "cost":
      return <Cost />;
    case "schedules":
      return <Schedules id={id} />;
    case "approvals":
      return <Approvals id={id} />;
    case "effects":
      return <Effects id={id} />;
    case "store":
      return <Store />;
    default:
      return (
        <Alone title="treering">
          <Empty title="Page not found">
            <a href="#/runs">Go to runs</a>
          </Empty>
        </Alone>
      );
  }
}

function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose} wide>
      <div class="help">
        {HELP.map(([title, keys]) => (
          <section key={title}>
            <h3>{title}</h3>
            <dl>
              {keys.map(([key, words]) => (
                <div key={key}>
                  <dt>
                    {key.split("  ").map((each) => (
                      <kbd key={each}>{each}</kbd>
                    ))}
                  </dt>
                  <dd>{words}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
      <p class="buttons">
        <button type="button" class="primary" onClick={onClose}>
          Close
        </button>
      </p>
    </Dialog>
  );
}

function Unlock() {
  const [key, setText] = useState("");
  return (
    <Dialog title="API key required" firm>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setKey(key.trim());
        }}
      >
        <p>
          Create one with <code>treering keys create --scope read</code>. It is stored in this tab only, until you close it.
        </p>
        {locked.value === "refused" && (
          <p class="trouble" role="alert">
            This key is unknown or does not permit this.
          </p>
        )}
        <label class="field">
          API key
          <input type="password" required autocomplete="off" value={key} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <p class="buttons">
          <button type="submit" class="primary">
            Continue
          </button>
        </p>
      </form>
    </Dialog>
  );
}
