import type { PageProps } from "../app";
import { bytes, edgePage, full, latency, milliseconds, mtls, percent, rate, workloadPage } from "../format";
import { Problems } from "../problems";
import { href } from "../route";
import { Causes, Unanswered } from "../unanswered";
import { SeriesCharts } from "./series";

const CLASSES = ["1xx", "2xx", "3xx", "4xx", "5xx"];

export function EdgePage({ place, topology, marks, now, begin, client, server }: PageProps & { client: [string, string]; server: [string, string] }) {
  const path = edgePage({ client_namespace: client[0], client: client[1], server_namespace: server[0], server: server[1] });
  const edge = topology.edges.find((one) => edgePage(one) === path);
  const problems = topology.problems.filter(({ about }) => about.kind === "edge" && edgePage(about) === path);
  const end = ([namespace, name]: [string, string]) =>
    topology.workloads.some((one) => one.namespace === namespace && one.name === name) ? (
      <a href={href(workloadPage(namespace, name), place)}>{full(namespace, name)}</a>
    ) : (
      <>{full(namespace, name)}</>
    );
  return (
    <article>
      <h1>{end(client)} → {end(server)}</h1>
      {!edge && <p class="quiet">Nothing passed between them in this window.</p>}
      {edge && (
        <>
          <dl class="figures">
            <div><dt>Success</dt><dd>{percent(edge.success_rate)}</dd></div>
            <Unanswered of={edge} />
            <div><dt>Requests</dt><dd>{rate(edge.requests_per_s)}/s</dd></div>
            <div><dt>p50</dt><dd>{milliseconds(latency(edge).p50)}</dd></div>
            <div><dt>p95</dt><dd>{milliseconds(latency(edge).p95)}</dd></div>
            <div><dt>p99</dt><dd>{milliseconds(latency(edge).p99)}</dd></div>
            <div><dt>Encryption</dt><dd class={edge.mtls}>{mtls(edge)}</dd></div>
            {(edge.tcp_opened > 0 || edge.tcp_open > 0) && (
              <>
                <div><dt>Open connections</dt><dd>{edge.tcp_open}</dd></div>
                <div><dt>Bytes</dt><dd>{bytes(edge.tcp_read_bytes_per_s + edge.tcp_written_bytes_per_s)}</dd></div>
              </>
            )}
          </dl>
          {problems.length > 0 && <Problems problems={problems} place={place} now={now} />}
          <section aria-labelledby="answers">
            <h2 id="answers">Answers</h2>
            <dl class="figures">
              {CLASSES.map((name, nth) => {
                const count = edge.statuses[nth] ?? 0;
                return count > 0 && <div key={name}><dt>{name}</dt><dd class={nth === 4 ? "bad" : ""}>{count}</dd></div>;
              })}
              {edge.failed > 0 && <div><dt>Failed</dt><dd class="bad">{edge.failed}</dd></div>}
              {edge.retries > 0 && <div><dt>Retries</dt><dd>{edge.retries}</dd></div>}
              {edge.connect_failures > 0 && <div><dt>Connections not made</dt><dd class="bad">{edge.connect_failures}</dd></div>}
              {edge.ejected > 0 && <div><dt>Workers that eject endpoints</dt><dd class="bad">{edge.ejected}</dd></div>}
            </dl>
            <Causes causes={edge.causes} />
          </section>
        </>
      )}
      <SeriesCharts wanted={{ client: client.join("/"), server: server.join("/") }} place={place} marks={marks} now={now} begin={begin} />
    </article>
  );
}
