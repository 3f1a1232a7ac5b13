// The frame around every view: where one can go, whether the server is there, what the keys do.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

import { locked, reachable, setKey } from "./base/api";
import { useKeys } from "./base/keys";
import { live } from "./base/live";
import { go, route } from "./base/route";
import { isDark, toggleTheme } from "./ui/colours";
import { Dialog } from "./ui/dialog";
import { Rings } from "./ui/rings";
import { Alone, Empty } from "./ui/states";
import { Compare } from "./views/compare";
import { Cost } from "./views/cost";
import { Memory } from "./views/memory/memory";
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
  ["store", "Store", "o"],
] as const;

const HELP: readonly (readonly [string, readonly (readonly [string, string])[]])[] = [
  [
    "Everywhere",
    [
      ["/", "search"],
      ["j  k", "down, up (also the arrows)"],
      ["Enter", "open what is selected"],
      ["Esc", "back"],
      ["g r", "runs"],
      ["g t", "threads"],
      ["g w", "workspace"],
      ["g m", "memory"],
      ["g c", "cost"],
      ["g s", "schedules"],
      ["g o", "store"],
      ["d", "light or dark"],
      ["?", "this page"],
    ],
  ],
  [
    "In the list of runs",
    [
      ["x", "mark a run"],
      ["c", "compare the marked ones"],
    ],
  ],
  [
    "In a run",
    [
      ["1  2  3", "conversation, event, cost"],
      ["Space", "replay, pause"],
      ["[  ]", "one event back, on"],
      ["+  -  0", "zoom in, out, the whole run"],
      ["z", "zoom to the selected span"],
      ["h  l", "pan to the left, to the right"],
      ["←  →", "close, open a span"],
      ["C  E", "close all, open all"],
    ],
  ],
  ["In memory", [["n", "a new document"]]],
];

export function App() {
  const { path } = route.value;
  const [place = "runs", id] = path;
  const [helping, help] = useState(false);
  useKeys({
    ...Object.fromEntries(PLACES.map(([name, , key]) => [`g ${key}`, () => go([name])])),
    "?": () => help(true),
    d: toggleTheme,
  });
  useEffect(() => {
    const words = PLACES.find(([name]) => name === place)?.[1] ?? "treering";
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
        To the content
      </a>
      <nav class="side-nav" aria-label="Main">
        <a class="brand" href="#/runs" aria-label="treering: to the runs">
          <Rings count={3} size={30} />
          <span>treering</span>
        </a>
        <ul>
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
            {live.value ? "live" : "not live"}
          </span>
          <button type="button" class="quiet" onClick={toggleTheme} title="d">
            {isDark.value ? "Light" : "Dark"}
          </button>
          <button type="button" class="quiet" onClick={() => help(true)} title="?" aria-label="Keys">
            Keys
          </button>
        </div>
      </nav>
      <main id="main" tabIndex={-1}>
        {!reachable.value && (
          <p class="banner" role="alert">
            The server does not answer. What you see is what it said last; this page goes on by itself when it is back.
          </p>
        )}
        <View place={place} id={id} />
      </main>
      {helping && <Help onClose={() => help(false)} />}
      {locked.value && <Unlock />}
    </>
  );
}

function isAt(name: string, place: string): boolean {
  return name === place || (name === "runs" && place === "compare");
}

function View({ place, id }: { place: string; id: string | undefined }): ComponentChildren {
  switch (place) {
    case "runs":
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
    case "store":
      return <Store />;
    default:
      return (
        <Alone title="treering">
          <Empty title="There is no such page">
            <a href="#/runs">To the runs</a>
          </Empty>
        </Alone>
      );
  }
}

function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose} wide>
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
    <Dialog title="This server asks for a key" firm>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setKey(key.trim());
        }}
      >
        <p>
          Make one with <code>treering keys create --scope read</code>. It is kept in this tab only, until it is closed.
        </p>
        {locked.value === "refused" && (
          <p class="trouble" role="alert">
            The key that was given is not known here, or may not do this.
          </p>
        )}
        <label class="field">
          API key
          <input type="password" required autocomplete="off" value={key} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <p class="buttons">
          <button type="submit" class="primary">
            Go on
          </button>
        </p>
      </form>
    </Dialog>
  );
}
