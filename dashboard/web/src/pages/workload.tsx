import type { PageProps } from "../app";
import { full, latency, livePage, milliseconds, percent, rate } from "../format";
import { Problems } from "../problems";
import { href } from "../route";
import { EdgeTable } from "../tables";
import { Causes, Unanswered } from "../unanswered";
import { SeriesCharts } from "./series";

export function WorkloadPage({ place, topology, marks, now, begin, namespace, name }: PageProps & { namespace: string; name: string }) {
  const workload = topology.workloads.find((one) => one.namespace === namespace && one.name === name);
  const is = (ns: string, other: string) => ns === namespace && other === name;
  const callers = topology.edges.filter((edge) => is(edge.server_namespace, edge.server));
  const called = topology.edges.filter((edge) => is(edge.client_namespace, edge.client));
  const problems = topology.problems.filter(({ about }) =>
    about.kind === "workload"
      ? is(about.namespace, about.name)
      : about.kind === "edge" && (is(about.client_namespace, about.client) || is(about.server_namespace, about.server)),
  );
  return (
    <article>
      <h1>{full(namespace, name)}</h1>
      {workload?.meshed && place.at === undefined && <p><a href={href(livePage(namespace, name), place)}>Live requests</a></p>}
      {!workload && <p class="quiet">No workload of this name was there in this window.</p>}
      {workload && (
        <dl class="figures">
          <div><dt>Instances</dt><dd class={workload.ready < workload.instances ? "bad" : ""}>{workload.ready} of {workload.instances} ready</dd></div>
          <div><dt>Success</dt><dd>{percent(workload.success_rate)}</dd></div>
          <Unanswered of={workload} />
          <div><dt>Requests</dt><dd>{rate(workload.requests_per_s)}/s</dd></div>
          <div><dt>p50</dt><dd>{milliseconds(latency(workload).p50)}</dd></div>
          <div><dt>p99</dt><dd>{milliseconds(latency(workload).p99)}</dd></div>
          <div><dt>Proxy</dt><dd>{workload.meshed ? "meshed" : "none"}</dd></div>
        </dl>
      )}
      {problems.length > 0 && <Problems problems={problems} place={place} now={now} />}
      {workload && <Causes causes={workload.causes} />}
      {workload && <SeriesCharts wanted={{ workload: `${namespace}/${name}` }} place={place} marks={marks} now={now} begin={begin} instances={workload.instances} />}
      <EdgeTable edges={callers} place={place} heading="Called by" />
      <EdgeTable edges={called} place={place} heading="Calls" />
    </article>
  );
}
