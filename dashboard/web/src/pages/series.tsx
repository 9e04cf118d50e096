// The charts of a workload or an edge.

import type { Mark, Point, Wanted } from "../api";
import * as api from "../api";
import { Chart } from "../chart";
import { bytes, latency, milliseconds, percent, rate } from "../format";
import { useLoaded } from "../load";
import type { Place } from "../route";

const HOUR = 3_600_000;

interface Props {
  wanted: Wanted;
  place: Place;
  marks: Mark[];
  now: number;
  /** The time at which the history begins. */
  begin: number;
  /** The instances of the workload. */
  instances?: number;
}

const perSecond = (point: Point, count: number) => (point.observed_s > 0 ? count / point.observed_s : 0);

export function SeriesCharts({ wanted, place, marks, now, begin, instances }: Props) {
  // Charts end at the present, unless the selected moment is too old to be on such a chart.
  const to = place.at !== undefined && place.at < now - HOUR ? place.at + HOUR / 2 : now;
  const span: [number, number] = [Math.max(to - HOUR, Math.min(begin, to - 60_000)), to];
  const live = place.at === undefined;
  const loaded = useLoaded(JSON.stringify([wanted, live ? "now" : to]), live ? 5_000 : null, (signal) => {
    const end = live ? Date.now() : to;
    return api.series(wanted, end - HOUR, end, signal);
  });
  if (!loaded.value) return <p class="quiet">{loaded.error ?? "Loading…"}</p>;
  const common = { points: loaded.value, span, marks, place };
  const tcp = loaded.value.points.some((point) => point.tcp_opened > 0 || point.tcp_open > 0);
  const http = loaded.value.points.some((point) => point.requests > 0);
  return (
    <div class="charts">
      {(http || !tcp) && (
        <>
          <Chart {...common} title="Requests" show={(value) => `${rate(value)}/s`} lines={[
            { name: "all", of: (point) => point.requests_per_s },
            { name: "failed", of: (point) => perSecond(point, point.failed) },
            { name: "not answered", of: (point) => perSecond(point, point.given_up + point.denied) },
          ]} />
          <Chart {...common} title="Success" top={1} show={percent} lines={[{ name: "success", of: (point) => point.success_rate }]} />
          <Chart {...common} title="Latency" show={milliseconds} lines={[
            { name: "p50", of: (point) => latency(point).p50 },
            { name: "p95", of: (point) => latency(point).p95 },
            { name: "p99", of: (point) => latency(point).p99 },
          ]} />
        </>
      )}
      {tcp && (
        <>
          <Chart {...common} title="Bytes" show={bytes} lines={[
            { name: "from the client", of: (point) => point.tcp_read_bytes_per_s },
            { name: "to the client", of: (point) => point.tcp_written_bytes_per_s },
          ]} />
          <Chart {...common} title="Connections" show={(value) => value.toFixed(0)} lines={[{ name: "open", of: (point) => point.tcp_open }]} />
        </>
      )}
      <Chart {...common} title="Failed by the mesh" show={(value) => value.toFixed(0)} lines={[
        { name: "errors", of: (point) => point.causes.reduce((sum, cause) => sum + cause.count, 0) },
        { name: "retries", of: (point) => point.retries },
        { name: "connections not made", of: (point) => point.connect_failures },
      ]} />
      {instances !== undefined && (
        <Chart {...common} title="Instances" top={Math.max(instances, 1)} show={(value) => value.toFixed(0)} lines={[{ name: "that take traffic", of: (point) => point.ready }]} />
      )}
    </div>
  );
}
