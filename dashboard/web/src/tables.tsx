// Edges and workloads as tables. They have the same data as the picture, for keyboards and screen readers.

import type { ComponentChildren } from "preact";

import type { Edge, Route, Signals, Workload } from "./api";
import { bytes, edgePage, full, health, latency, milliseconds, mtls, percent, rate, routePage, workloadPage, type Health } from "./format";
import { href, type Place } from "./route";

/** Most rows of a table. More rows would not help readers, who can narrow the table by the search. */
export const MAX_ROWS = 200;

interface TableProps {
  id: string;
  heading: string;
  columns: string[];
  rows: ComponentChildren[];
  /** The number of rows that are not shown. */
  left: number;
  /** The text in place of a table without rows. */
  none?: string;
  /** Why figures of some rows are missing. */
  missing?: string | false;
}

export function Table({ id, heading, columns, rows, left, none = "None in this window.", missing = false }: TableProps) {
  return (
    <div class="table">
      <h2 id={id}>{heading}</h2>
      <div class="wide" tabIndex={0} role="region" aria-labelledby={id}>
        <table>
          <thead>
            <tr>
              {columns.map((column) => (
                <th key={column} scope="col">
                  {column}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>{rows}</tbody>
        </table>
      </div>
      {rows.length === 0 && <p class="quiet">{none}</p>}
      {missing && <p class="quiet">{missing}</p>}
      {left > 0 && <p class="quiet">{left} more: search for a name.</p>}
    </div>
  );
}

const Figures = ({ of }: { of: Signals }) => (
  <>
    <td class="number">{percent(of.success_rate)}</td>
    <td class="number">{unanswered(of)}</td>
    <td class="number">{rate(of.requests_per_s)}</td>
    <td class="number">{milliseconds(latency(of).p50)}</td>
    <td class="number">{milliseconds(latency(of).p99)}</td>
  </>
);

const missingPercentiles = (shown: Signals[]) =>
  shown.some((one) => latency(one).p99 !== one.latency_ms.p99) && "p99 needs 100 requests, and rows with fewer have –: a longer window has more.";

/** The requests that a success rate leaves out, as shares of all. */
function unanswered({ requests, given_up, denied }: Signals): ComponentChildren {
  const shares: ComponentChildren[] = [];
  if (given_up > 0) shares.push(<span class="bad">{percent(given_up / requests)} given up</span>);
  if (denied > 0) shares.push(<span class="partly">{percent(denied / requests)} denied</span>);
  return shares.length > 0 ? shares.map((share, nth) => (nth > 0 ? [", ", share] : share)) : "–";
}

export const Mark = ({ is }: { is: Health }) => <span class={`dot ${is}`} title={is} role="img" aria-label={is} />;

const Dot = ({ of }: { of: Signals }) => <Mark is={health(of)} />;

/** Sorts the worst rows first, and among equally bad ones the busiest. */
function byHealth(a: Signals, b: Signals): number {
  const weight = (of: Signals) => ({ bad: 0, warning: 1, good: 2, idle: 3 })[health(of)];
  return weight(a) - weight(b) || b.requests_per_s - a.requests_per_s;
}

export function EdgeTable({ edges, place, heading = "Edges" }: { edges: Edge[]; place: Place; heading?: string }) {
  const shown = [...edges].sort(byHealth).slice(0, MAX_ROWS);
  const rows = shown.map((edge) => (
    <tr key={edgePage(edge)}>
      <td>
        <Dot of={edge} />{" "}
        <a href={href(edgePage(edge), place)}>
          {full(edge.client_namespace, edge.client)} → {full(edge.server_namespace, edge.server)}
        </a>
      </td>
      <Figures of={edge} />
      <td class="number">{edge.tcp_open > 0 || edge.tcp_opened > 0 ? bytes(edge.tcp_read_bytes_per_s + edge.tcp_written_bytes_per_s) : "–"}</td>
      <td class={edge.mtls}>{mtls(edge)}</td>
    </tr>
  ));
  return <Table id={heading.toLowerCase().replaceAll(" ", "-")} heading={heading} columns={["Client → server", "Success", "Not answered", "Requests/s", "p50", "p99", "TCP", "Encryption"]} rows={rows} left={edges.length - rows.length} missing={missingPercentiles(shown)} />;
}

export function WorkloadTable({ workloads, place }: { workloads: Workload[]; place: Place }) {
  const shown = workloads.slice(0, MAX_ROWS);
  const rows = shown.map((one) => (
    <tr key={full(one.namespace, one.name)}>
      <td>
        <Dot of={one} /> <a href={href(workloadPage(one.namespace, one.name), place)}>{full(one.namespace, one.name)}</a>
      </td>
      <td class={one.ready < one.instances ? "number bad" : "number"}>
        {one.ready}/{one.instances}
      </td>
      <Figures of={one} />
      <td>{one.meshed ? "meshed" : "no proxy"}</td>
    </tr>
  ));
  return <Table id="workloads" heading="Workloads" columns={["Workload", "Ready", "Success", "Not answered", "Requests/s", "p50", "p99", "Proxy"]} rows={rows} left={workloads.length - rows.length} missing={missingPercentiles(shown)} />;
}

export function RouteTable({ routes, place }: { routes: Route[]; place: Place }) {
  const name = (route: string) => {
    const page = routePage(route);
    return page === null ? route : <a href={href(page, place)}>{route}</a>;
  };
  const shown = [...routes].sort(byHealth).slice(0, MAX_ROWS);
  const rows = shown.map((one) => (
    <tr key={[one.namespace, one.service, one.route, one.rule].join(" ")}>
      <td>
        <Dot of={one} /> {full(one.namespace, one.service)}
      </td>
      <td>{one.route === "" ? <span class="quiet">no rule matches</span> : name(one.route)}</td>
      <td>{one.rule}</td>
      <Figures of={one} />
      <td class="number">{one.retries}</td>
    </tr>
  ));
  return <Table id="routes" heading="Rules of routes" columns={["Service", "Route", "Rule", "Success", "Not answered", "Requests/s", "p50", "p99", "Retries"]} rows={rows} left={routes.length - rows.length} missing={missingPercentiles(shown)} />;
}
