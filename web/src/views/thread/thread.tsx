// One thread: its diagram, its checkpoints and forks, and one checkpoint in full.
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";

import { at, epoch, type Problem } from "../../base/api";
import { plural } from "../../base/format";
import { useKeys } from "../../base/keys";
import { useChanges } from "../../base/live";
import { asProblem, useGet } from "../../base/query";
import { go, href, route, select } from "../../base/route";
import { Crumb, Head, SaidLine, Tags, Time } from "../../ui/bits";
import { Rows } from "../../ui/rows";
import { Alone, Failure, StaleNotice, Loading } from "../../ui/states";
import { PartialReply } from "../partial";
import { grow, type Grown, type Node } from "./growth";
import { Inspector } from "./inspector";
import { ThreadRuns } from "./runs";
import { Section } from "./section";

export function Thread({ id }: { id: string }) {
  const namespace = route.value.query["namespace"] ?? "";
  const [grown, setGrown] = useState<{ of: string; pages: number; tree: Grown } | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [turn, setTurn] = useState(0);
  const [pages, setPages] = useState(1);
  const reload = useCallback(() => setTurn((was) => was + 1), []);
  const era = epoch.value;
  const of = `${namespace}\n${id}`;
  useEffect(() => {
    const stop = new AbortController();
    grow(id, namespace, pages, stop.signal).then(
      (tree) => {
        if (stop.signal.aborted) return;
        setGrown({ of, pages, tree });
        setProblem(null);
      },
      (error: unknown) => !stop.signal.aborted && setProblem(asProblem(error)),
    );
    return () => stop.abort();
  }, [id, namespace, turn, pages, era]);
  useChanges((event) => event.kind === "checkpoint" || event.kind === "rewind", reload, 500);
  useKeys({ Escape: () => go(["threads"]) });
  if (grown?.of !== of && problem?.status === 404) return <RunsOnly id={id} namespace={namespace} problem={problem} />;
  if (grown?.of !== of) {
    return (
      <Alone title={`Thread ${id}`}>
        {problem ? <Failure problem={problem} retry={reload} /> : <Loading what="Loading thread" />}
      </Alone>
    );
  }
  const older = () => grown.tree.lineages[0]!.next_cursor !== null && setPages(grown.pages + 1);
  const hitch = problem && <StaleNotice problem={problem} retry={reload} />;
  return <Shown id={id} grown={grown.tree} onChange={reload} onEnd={older} hitch={hitch} />;
}

/** A thread that runs name, but of which nothing was saved. */
function RunsOnly({ id, namespace, problem }: { id: string; namespace: string; problem: Problem }) {
  const runs = useGet<{ runs: unknown[] }>(at(["runs"], { thread: id, namespace, limit: 1 }));
  if (!runs.data?.runs.length) {
    return <Alone title={`Thread ${id}`}>{runs.data || runs.problem ? <Failure problem={problem} /> : <Loading what="Loading thread" />}</Alone>;
  }
  return (
    <div class="view">
      <Head above={<Crumb path={["threads"]}>Threads</Crumb>} title={id}>
        <p class="muted">
          Runs name this thread, but it has no checkpoints. Save messages with <code>store.thread("{id}").append(…)</code>.
        </p>
        <PartialReply thread={id} namespace={namespace} />
      </Head>
      <ThreadRuns thread={id} namespace={namespace} />
    </div>
  );
}

interface Props {
  id: string;
  grown: Grown;
  onChange: () => void;
  onEnd: () => void;
  hitch: ComponentChildren;
}

function Shown({ id, grown, onChange, onEnd, hitch }: Props) {
  const { query } = route.value;
  const [lineage] = grown.lineages;
  const mine = useMemo(() => checkpointsOf(grown), [grown]);
  const chosen = grown.nodes.get(query["at"] ?? "") ?? grown.nodes.get(lineage!.thread.head) ?? mine[0];
  const place = mine.findIndex((node) => node === chosen);
  const choose = (node: Node) => select({ at: node.checkpoint.id });
  const relatives = grown.lineages.slice(1);
  return (
    <div class="view thread-view">
      <Head
        above={
          <>
            <Crumb path={["threads"]}>Threads</Crumb>
            {lineage!.thread.namespace && <> / {lineage!.thread.namespace}</>}
          </>
        }
        title={id}
        aside={
          relatives.length > 0 && (
            <nav class="relatives" aria-label="Forks and origins">
              {relatives.map((each) => (
                <a
                  key={`${each.thread.namespace}\n${each.thread.id}`}
                  class={`relative branch-${grown.lineages.indexOf(each) % 5}`}
                  href={href(["threads", each.thread.id], { namespace: each.thread.namespace })}
                >
                  <i aria-hidden="true" /> {each.thread.id}
                </a>
              ))}
              {grown.left > 0 && <span class="muted">and {grown.left} more</span>}
            </nav>
          )
        }
      >
        <p class="muted">
          {plural(lineage!.checkpoints.length, "checkpoint")}
          {lineage!.next_cursor && " (the newest)"}, last changed <Time at={lineage!.thread.updated_at} />
          {lineage!.origin && (
            <>
              , forked from{" "}
              <a href={href(["threads", lineage!.origin.thread], { at: lineage!.origin.id, namespace: lineage!.origin.namespace })}>
                {lineage!.origin.thread} at step {lineage!.origin.step}
              </a>
            </>
          )}
        </p>
        <PartialReply thread={id} namespace={lineage!.thread.namespace} />
      </Head>
      <div class="panes thread-panes">
        <div class="growth">
          <Section grown={grown} selected={chosen?.checkpoint.id ?? null} other={query["with"] ?? null} onSelect={choose} />
          <Rows
            class="checkpoints"
            label="Checkpoints"
            items={mine}
            height={34}
            idOf={(node) => node.checkpoint.id}
            selected={place}
            onSelect={(index) => choose(mine[index]!)}
            onEnd={onEnd}
            row={(node) => <CheckpointRow node={node} onSelect={choose} />}
          />
          {hitch}
        </div>
        {chosen && <Inspector key={chosen.checkpoint.id} grown={grown} node={chosen} onChange={onChange} />}
      </div>
    </div>
  );
}

function CheckpointRow({ node, onSelect }: { node: Node; onSelect: (node: Node) => void }) {
  const { checkpoint } = node;
  return (
    <button type="button" class={`checkpoint branch-${node.branch % 5}${node.isOnLine ? "" : " left"}`} onClick={() => onSelect(node)}>
      <span class="step">{checkpoint.step}</span>
      <i class="knot" aria-hidden="true" />
      <span class="checkpoint-note">
        {checkpoint.note ??
          (checkpoint.last_message ? (
            <SaidLine said={checkpoint.last_message} />
          ) : (
            <span class="muted">{plural(checkpoint.message_count, "message")}</span>
          ))}
      </span>
      {!node.isOnLine && <span class="tag">abandoned</span>}
      <Tags tags={checkpoint.tags} />
      {checkpoint.pending_interrupt && node.isHead && <span class="tag warn">pending approval</span>}
      {node.isHead && <span class="tag good">head</span>}
      {node.children.length > 1 && <span class="tag">{node.children.length} branches</span>}
      {checkpoint.snapshot && <span class="tag">files</span>}
      <span class="muted checkpoint-time">
        <Time at={checkpoint.created_at} />
      </span>
    </button>
  );
}

/** The checkpoints of the thread and of the history that it shares, newest first. */
function checkpointsOf(grown: Grown): Node[] {
  const found = [...grown.nodes.values()].filter((node) => node.branch === 0);
  let from = grown.lineages[0]?.origin?.id;
  for (let node = grown.nodes.get(from ?? ""); node; node = grown.nodes.get(from ?? "")) {
    found.push(node);
    from = node.checkpoint.parent ?? undefined;
  }
  return found.sort((one, other) => (one.checkpoint.id < other.checkpoint.id ? 1 : -1));
}
