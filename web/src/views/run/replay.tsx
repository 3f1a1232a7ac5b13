// Replay: a slider over the time of the run.
import { useEffect, useRef, useState } from "preact/hooks";

import { duration } from "../../base/format";
import { useKeys } from "../../base/keys";

interface Props {
  start: number;
  end: number;
  /** Absolute time, or null for the end of the run. */
  until: number | null;
  moments: readonly number[];
  onMove: (until: number | null) => void;
}

const WHOLE_MS = 12_000;
const SPEEDS = [0.5, 1, 2, 4];

export function Replay({ start, end, until, moments, onMove }: Props) {
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(1);
  const place = useRef(until);
  place.current = until;
  const bounds = useRef({ start, end, speed });
  bounds.current = { start, end, speed };
  useEffect(() => {
    if (!playing) return;
    let before = performance.now();
    let frame = requestAnimationFrame(function tick(now) {
      const { start: first, end: last, speed: pace } = bounds.current;
      const from = place.current ?? first;
      const next = from + ((now - before) / WHOLE_MS) * (last - first) * pace;
      before = now;
      if (next >= last) {
        setPlaying(false);
        onMove(null);
        return;
      }
      onMove(Math.round(next));
      frame = requestAnimationFrame(tick);
    });
    return () => cancelAnimationFrame(frame);
  }, [playing]);
  const toggle = () => {
    if (!playing && until === null) onMove(start);
    setPlaying(!playing);
  };
  const step = (by: 1 | -1) => {
    setPlaying(false);
    const now = until ?? end;
    const next = by > 0 ? moments.find((each) => each > now) : moments.findLast((each) => each < now);
    onMove(next === undefined ? (by > 0 ? null : start) : next);
  };
  useKeys({ " ": toggle, "]": () => step(1), "[": () => step(-1) });
  return (
    <div class="replay" role="group" aria-label="Replay">
      <button type="button" class="quiet" onClick={() => step(-1)} aria-label="Previous event" title="Previous event ( [ )">
        ‹
      </button>
      <button type="button" class="play" onClick={toggle} title="Play or pause (space)">
        {playing ? "Pause" : "Replay"}
      </button>
      <button type="button" class="quiet" onClick={() => step(1)} aria-label="Next event" title="Next event ( ] )">
        ›
      </button>
      <input
        type="range"
        aria-label="Time in the run"
        aria-valuetext={until === null ? "the end" : `${duration(until - start)} after the start`}
        min={0}
        max={1000}
        step={1}
        value={until === null ? 1000 : Math.round(((until - start) / (end - start)) * 1000)}
        onInput={(event) => {
          setPlaying(false);
          const share = Number(event.currentTarget.value) / 1000;
          onMove(share >= 1 ? null : Math.round(start + share * (end - start)));
        }}
      />
      <output class="replay-time">
        {duration((until ?? end) - start)} <span class="muted">of {duration(end - start)}</span>
      </output>
      <label class="small">
        <span class="hidden">Speed</span>
        <select value={String(speed)} onChange={(event) => setSpeed(Number(event.currentTarget.value))}>
          {SPEEDS.map((each) => (
            <option key={each} value={String(each)}>
              {each}×
            </option>
          ))}
        </select>
      </label>
    </div>
  );
}
