// A chart of one figure over time, with marks for the changes and for the moment that is shown.

import type { Mark, Point, Points } from "./api";
import { clock } from "./format";
import { change, type Place } from "./route";

const WIDTH = 560;
const HEIGHT = 120;

export interface Line {
  name: string;
  of: (point: Point) => number | null;
}

interface Props {
  title: string;
  points: Points;
  span: [number, number];
  lines: Line[];
  show: (value: number) => string;
  marks: Mark[];
  place: Place;
  /** The top of the scale, if it is fixed. */
  top?: number;
}

export function Chart({ title, points, span: [from, to], lines, show, marks, place, top }: Props) {
  const values = points.points.flatMap((point) => lines.map((line) => line.of(point) ?? 0));
  const highest = top ?? Math.max(...values, 0);
  const scale = highest > 0 ? highest : 1;
  const x = (ms: number) => ((ms - from) / Math.max(to - from, 1)) * WIDTH;
  const y = (value: number) => HEIGHT - (value / scale) * (HEIGHT - 6);
  const last = points.points.at(-1);
  return (
    <figure class="chart">
      <figcaption>
        {title}{" "}
        {lines.map((line, nth) => {
          const value = last ? line.of(last) : null;
          return (
            <span key={line.name} class={`key line${nth}`}>
              {line.name} {value === null ? "–" : show(value)}
            </span>
          );
        })}
      </figcaption>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${title} from ${clock(from)} to ${clock(to)}, at most ${show(highest)}`}
        onClick={(event) => {
          const box = event.currentTarget.getBoundingClientRect();
          change(place, { at: from + ((event.clientX - box.left) / box.width) * (to - from) });
        }}
      >
        {marks
          .filter((mark) => from <= mark.at_ms && mark.at_ms <= to)
          .map((mark) => (
            <line key={mark.at_ms} class={`mark ${mark.kind}`} x1={x(mark.at_ms)} x2={x(mark.at_ms)} y1={0} y2={HEIGHT}>
              <title>{`${clock(mark.at_ms)}\n${mark.lines.join("\n")}`}</title>
            </line>
          ))}
        {place.at !== undefined && <line class="moment" x1={x(place.at)} x2={x(place.at)} y1={0} y2={HEIGHT} />}
        {lines.map((line, nth) => (
          <path key={line.name} class={`line${nth}`} d={path(points, line, x, y)} />
        ))}
      </svg>
      <div class="axis">
        <span>{clock(from)}</span>
        <span>{show(highest)} at most</span>
        <span>{clock(to)}</span>
      </div>
    </figure>
  );
}

/** A line that has gaps where nothing was observed. */
function path(points: Points, line: Line, x: (ms: number) => number, y: (value: number) => number): string {
  let drawn = "";
  let before: number | null = null;
  for (const point of points.points) {
    const value = line.of(point);
    if (value === null) {
      before = null;
      continue;
    }
    const joined = before !== null && point.at_ms - before < 3 * Math.max(points.step_ms, point.observed_s * 1000);
    drawn += `${joined ? "L" : "M"}${x(point.at_ms).toFixed(1)} ${y(value).toFixed(1)}`;
    // A single observation is drawn as a dot.
    if (!joined) drawn += "h1";
    before = point.at_ms;
  }
  return drawn;
}
