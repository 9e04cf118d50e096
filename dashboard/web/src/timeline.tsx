// The time control: it selects the present or any moment of the last day, and marks the times of changes.

import { useMemo } from "preact/hooks";

import type { Mark, Overview } from "./api";
import { clock } from "./format";
import { change, type Place } from "./route";

const WINDOWS = [
  [30_000, "30 s"],
  [60_000, "1 min"],
  [300_000, "5 min"],
  [900_000, "15 min"],
  [3_600_000, "1 h"],
] as const;

export function Timeline({ overview, marks, place }: { overview: Overview; marks: Mark[]; place: Place }) {
  const { from_ms: from, to_ms: to, step_ms: step } = overview;
  const shown = useMemo(() => (from === null || to === null ? [] : marks.filter((mark) => from <= mark.at_ms && mark.at_ms <= to)), [marks, from, to]);
  if (from === null || to === null) return null;
  const at = Math.min(Math.max(place.at ?? to, from), to);
  // The last stop of the slider is the present. A moment shortly before the present is shown one stop earlier;
  // otherwise the slider could not leave the present.
  const live = from + Math.max(Math.ceil((to - from) / step), 1) * step;
  const span = live - from;
  const left = (ms: number) => `${((ms - from) / span) * 100}%`;
  return (
    <section class="timeline" aria-label="time">
      <button type="button" class={place.at === undefined ? "live on" : "live"} aria-pressed={place.at === undefined} onClick={() => change(place, { at: undefined })}>
        Live
      </button>
      <div class="slider">
        <input
          type="range"
          aria-label="moment"
          aria-valuetext={place.at === undefined ? "now" : clock(at)}
          min={from}
          max={live}
          step={step}
          value={place.at === undefined ? live : Math.min(at, live - step)}
          onInput={(event) => {
            const value = Number(event.currentTarget.value);
            change(place, { at: value >= live ? undefined : value });
          }}
        />
        <div class="marks">
          {shown.map((mark) => (
            <button
              key={`${mark.at_ms} ${mark.kind}`}
              type="button"
              class={`mark ${mark.kind}`}
              style={{ left: left(mark.at_ms) }}
              title={`${clock(mark.at_ms)}\n${mark.lines.join("\n")}`}
              aria-label={`change at ${clock(mark.at_ms)}: ${mark.lines[0] ?? mark.kind}`}
              onClick={() => change(place, { at: Math.min(mark.at_ms + place.window, to) })}
            />
          ))}
        </div>
      </div>
      <output>{place.at === undefined ? "now" : clock(at)}</output>
      <label>
        <span class="unseen">window</span>
        <select value={place.window} onChange={(event) => change(place, { window: Number(event.currentTarget.value) })}>
          {WINDOWS.map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
        </select>
      </label>
    </section>
  );
}
