// The policies: what each selects, how many times it has made which decision, and which clients it has denied.

import * as api from "../api";
import type { PageProps } from "../app";
import { edgePage, full, policyPage, workloadPage, type Health } from "../format";
import { Beyond, Filters, Unavailable, fits } from "../lists";
import { TICK, useLoaded } from "../load";
import { href, type Place } from "../route";
import { MAX_ROWS, Mark, Table } from "../tables";
import { DocumentOf } from "./document";

const usePolicies = ({ at, window }: Place) =>
  useLoaded(`policies ${at} ${window}`, at === undefined ? TICK : null, (signal) => api.policies(at, window, signal));

const deniedBy = (policy: api.Policy) => policy.denied.reduce((sum, one) => sum + one.count, 0);

/**
 * Denials are what a policy is for, so they are no fault but worth a look. A policy that selects nothing has no
 * effect.
 */
function health(policy: api.Policy): Health {
  if (policy.denied.length > 0) return "warning";
  return policy.workloads.length > 0 || policy.selects.some((one) => one.includes("Route")) ? "good" : "idle";
}

const decisions = ({ decisions }: api.Policy) =>
  Object.entries(decisions).map(([decision, count]) => `${decision} ${count}`).join(", ");

const counted = (policy: api.Policy) => policy.workloads.length + policy.left_out;

export function PoliciesPage({ place }: PageProps) {
  const loaded = usePolicies(place);
  const all = loaded.value?.policies ?? [];
  const narrowed = (policy: api.Policy) =>
    place.filter === "" || (place.filter === "denies" ? policy.denied.length > 0 : place.filter === "idle" ? health(policy) === "idle" : policy.kind === place.filter);
  const shown = all
    .filter((one) => narrowed(one) && fits(place, [one.namespace, ...one.workloads.map(([namespace]) => namespace)], [`${one.kind} ${full(one.namespace, one.name)}`, ...one.selects, ...one.workloads.map(([namespace, name]) => full(namespace, name))]))
    .sort((a, b) => deniedBy(b) - deniedBy(a));
  const kinds = [...new Set(all.map((one) => one.kind))].sort();
  const rows = shown.slice(0, MAX_ROWS).map((one) => (
    <tr key={policyPage(one)}>
      <td>
        <Mark is={health(one)} /> <a href={href(policyPage(one), place)}>{full(one.namespace, one.name)}</a>
      </td>
      <td>{one.kind}{one.action !== "" && `, ${one.action}`}</td>
      <td>{one.selects.join("; ") || "nothing"}</td>
      <td class="number">{counted(one)}</td>
      <td>{decisions(one) || "–"}</td>
      <td class={one.denied.length > 0 ? "number partly" : "number"}>{deniedBy(one) || "–"}</td>
    </tr>
  ));
  return (
    <section class="policies">
      <h1 class="unseen">Policies</h1>
      {loaded.error !== null && <Unavailable>{loaded.error}</Unavailable>}
      {loaded.value?.unavailable != null && <Unavailable>{loaded.value.unavailable}</Unavailable>}
      <Filters place={place} namespaces={all.map((one) => one.namespace)} filters={[["denies", "that denied"], ["idle", "that select nothing"], ...kinds.map((kind): [string, string] => [kind, kind])]} />
      <Table id="policies" heading="Policies" columns={["Policy", "Kind", "Selects", "Workloads", "Decided", "Denied"]} rows={rows} left={shown.length - rows.length} none={all.length === 0 ? "There are no policies." : "None that fits."} />
      <Beyond count={loaded.value?.left_out ?? 0} what="policies" />
      <p class="quiet">
        <em>Denied</em> are requests and connections of the window to its workloads, by policies of its kind; <em>decided</em> is what proxies that run count since they began.
      </p>
    </section>
  );
}

export function PolicyPage({ place, kind, namespace, name }: PageProps & { kind: string; namespace: string; name: string }) {
  const loaded = usePolicies(place);
  const policy = loaded.value?.policies.find((one) => one.kind === kind && one.namespace === namespace && one.name === name);
  return (
    <article>
      <h1>{kind} {full(namespace, name)}</h1>
      {loaded.error !== null && <Unavailable>{loaded.error}</Unavailable>}
      {loaded.value && !policy && <p class="quiet">No policy of this name is there.</p>}
      {policy && <Detail policy={policy} place={place} />}
      <DocumentOf kind={kind} namespace={namespace} name={name} place={place} />
    </article>
  );
}

function Detail({ policy, place }: { policy: api.Policy; place: Place }) {
  const workloads = policy.workloads.slice(0, MAX_ROWS).map(([namespace, name]) => (
    <tr key={full(namespace, name)}>
      <td><a href={href(workloadPage(namespace, name), place)}>{full(namespace, name)}</a></td>
      <td class="number">{policy.denied.filter((one) => one.server_namespace === namespace && one.server === name).reduce((sum, one) => sum + one.count, 0) || "–"}</td>
    </tr>
  ));
  const denied = policy.denied.slice(0, MAX_ROWS).map((one) => (
    <tr key={edgePage(one)}>
      <td>{full(one.client_namespace, one.client)}</td>
      <td><a href={href(edgePage(one), place)}>{full(one.server_namespace, one.server)}</a></td>
      <td class="number partly">{one.count}</td>
    </tr>
  ));
  return (
    <>
      <dl class="figures">
        {policy.action !== "" && <div><dt>Action</dt><dd>{policy.action}</dd></div>}
        <div><dt>{policy.kind === "RateLimitPolicy" ? "Limits" : "Rules"}</dt><dd>{policy.rules}</dd></div>
        <div><dt>Selects</dt><dd>{policy.selects.join("; ") || "nothing"}</dd></div>
        {Object.entries(policy.decisions).map(([decision, count]) => (
          <div key={decision}><dt>{decision}</dt><dd class={decision.includes("deny") || decision === "not-allowed" ? "partly" : ""}>{count}</dd></div>
        ))}
      </dl>
      <Table id="denied" heading="Denied clients" columns={["Client", "Server", "Times"]} rows={denied} left={policy.denied.length + (policy.denied_left_out ?? 0) - denied.length} none="No client in this window." />
      <Table id="selected" heading="What it selects" columns={["Workload", "Denied"]} rows={workloads} left={counted(policy) - workloads.length} none="No workload: a policy of routes selects requests, and one without a match does nothing." />
      <p class="quiet">Why a request is denied: <code>leno authz check</code>. Where several policies select a workload, what was decided tells which of them it was.</p>
    </>
  );
}
