// The proxies: whether they answer, how old their configuration is, their identities, and how much of their limits
// they use.

import * as api from "../api";
import type { PageProps } from "../app";
import { full, length, proxyPage, size, workloadPage, type Health } from "../format";
import { Beyond, Filters, OfNow, Unavailable, fits } from "../lists";
import { TICK, useLoaded } from "../load";
import { href, type Place } from "../route";
import { MAX_ROWS, Mark, Table } from "../tables";

/** A proxy counts as full if it uses at least this share of its memory or connections. */
const FULL = 0.9;

export const useProxies = () => useLoaded("proxies", TICK, api.proxies);

/** The defects of a proxy, the worst first; empty if there are none. */
function troubles({ silent, state }: api.Proxy, now: number): [Health, string][] {
  if (silent !== null || state === null) return [["bad", silent ?? "it has not been asked yet"]];
  const found: [Health, string][] = [];
  const ends = state.certificate_ends_s;
  if (ends !== null && ends * 1000 < now) found.push(["bad", "its certificate has expired"]);
  if (state.connected === false) found.push(["bad", "it has lost the control plane"]);
  if (state.rejected > 0) found.push(["warning", `it has rejected ${state.rejected} responses of the control plane`]);
  if (state.memory_bytes > FULL * state.memory_budget_bytes && state.memory_budget_bytes > 0) found.push(["warning", "its memory is nearly used up"]);
  if (state.connections > FULL * state.max_connections && state.max_connections > 0) found.push(["warning", "it has nearly all connections that it may have"]);
  return found;
}

const health = (found: [Health, string][]): Health => found[0]?.[0] ?? "good";

const configuration = (state: api.ProxyState) => (state.connected === null ? "fixed" : state.connected ? "current" : `${length(state.configuration_age_s)} old`);

const certificate = (ends: number | null, now: number) =>
  ends === null ? "none" : ends * 1000 < now ? "expired" : `ends in ${length(ends - now / 1000)}`;

export function ProxiesPage({ place, now }: PageProps) {
  const loaded = useProxies();
  const all = loaded.value?.proxies ?? [];
  const judged = all.map((proxy) => ({ proxy, found: troubles(proxy, now) }));
  const order: Health[] = ["bad", "warning", "good", "idle"];
  const shown = judged
    .filter(({ proxy, found }) => fits(place, [proxy.namespace], [full(proxy.namespace, proxy.instance), proxy.workload, proxy.state?.identity ?? ""]) && (place.filter !== "troubled" || found.length > 0))
    .sort((a, b) => order.indexOf(health(a.found)) - order.indexOf(health(b.found)));
  const rows = shown.slice(0, MAX_ROWS).map(({ proxy, found }) => (
    <tr key={full(proxy.namespace, proxy.instance)}>
      <td>
        <Mark is={health(found)} /> <a href={href(proxyPage(proxy.namespace, proxy.instance), place)}>{full(proxy.namespace, proxy.instance)}</a>
      </td>
      <td>{proxy.workload}</td>
      {proxy.state ? (
        <>
          <td class={proxy.state.connected === false ? "bad" : ""}>{configuration(proxy.state)}</td>
          <td>{certificate(proxy.state.certificate_ends_s, now)}</td>
          <td class="number">{proxy.state.connections}</td>
          <td class="number">{size(proxy.state.memory_bytes)}</td>
        </>
      ) : (
        <td colSpan={4} class="bad">{proxy.silent}</td>
      )}
      <td>{found.map(([, words]) => words).join("; ")}</td>
    </tr>
  ));
  return (
    <section class="proxies">
      <h1 class="unseen">Proxies</h1>
      <OfNow place={place} />
      {loaded.error !== null && <Unavailable>{loaded.error}</Unavailable>}
      <Filters place={place} namespaces={all.map((one) => one.namespace)} filters={[["troubled", "with problems"]]} />
      <Table id="proxies" heading="Proxies" columns={["Instance", "Workload", "Configuration", "Certificate", "Connections", "Memory", "Problems"]} rows={rows} left={shown.length - rows.length} none={all.length === 0 ? "No proxy has been asked yet." : "None that fits."} />
      <Beyond count={loaded.value?.left_out ?? 0} what="proxies" />
      <p class="quiet">A configuration is current while the control plane is connected; else its age is the time since the control plane was heard last.</p>
    </section>
  );
}

export function ProxyPage({ place, now, namespace, name }: PageProps & { namespace: string; name: string }) {
  const loaded = useProxies();
  const proxy = loaded.value?.proxies.find((one) => one.namespace === namespace && one.instance === name);
  return (
    <article>
      <h1>Proxy of {full(namespace, name)}</h1>
      <OfNow place={place} />
      {loaded.error !== null && <Unavailable>{loaded.error}</Unavailable>}
      {loaded.value && !proxy && <p class="quiet">No proxy of this name is there.</p>}
      {proxy && <Detail proxy={proxy} place={place} now={now} />}
    </article>
  );
}

function Detail({ proxy, place, now }: { proxy: api.Proxy; place: Place; now: number }) {
  const found = troubles(proxy, now);
  const { state } = proxy;
  return (
    <>
      <p>of <a href={href(workloadPage(proxy.namespace, proxy.workload), place)}>{full(proxy.namespace, proxy.workload)}</a></p>
      {found.map(([is, words]) => (
        <p key={words} class={is === "bad" ? "state bad" : "state"}><strong>{is === "bad" ? "Broken" : "Warning"}:</strong> {words}.</p>
      ))}
      {state && (
        <dl class="figures">
          <div><dt>Configuration</dt><dd class={state.connected === false ? "bad" : ""}>{configuration(state)}</dd></div>
          <div><dt>Services and workloads known</dt><dd>{state.resources}</dd></div>
          <div><dt>Responses rejected</dt><dd class={state.rejected > 0 ? "bad" : ""}>{state.rejected}</dd></div>
          <div><dt>Identity</dt><dd>{state.identity ?? "none"}</dd></div>
          <div><dt>Certificate</dt><dd>{certificate(state.certificate_ends_s, now)}</dd></div>
          <div><dt>Connections</dt><dd>{state.connections}{state.max_connections > 0 && ` of ${state.max_connections}`}</dd></div>
          <div><dt>Memory</dt><dd>{size(state.memory_bytes)}{state.memory_budget_bytes > 0 && ` of ${size(state.memory_budget_bytes)}`}</dd></div>
        </dl>
      )}
      <p class="quiet">More of it: <code>leno diagnostics</code>, for its whole configuration; <code>leno explain</code>, for what it does with a request.</p>
    </>
  );
}
