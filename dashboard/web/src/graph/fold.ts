// Folds a large mesh into namespaces, because a thousand workloads at once cannot be read. The selected namespace
// keeps its workloads, and every other namespace becomes a single node.

import type { Edge, Signals, Topology, Workload } from "../api";
import { full, success } from "../format";

/** Beyond this number of workloads, namespaces are folded. */
const MOST = 150;

export interface Folded extends Topology {
  /** The namespaces that are drawn as one node, by the name of that node. */
  folded: Map<string, string>;
}

export function fold(topology: Topology, open: string): Folded {
  const folded = new Map<string, string>();
  if (topology.workloads.length <= MOST) return { ...topology, folded };
  const sizes = new Map<string, number>();
  for (const { namespace } of topology.workloads) sizes.set(namespace, (sizes.get(namespace) ?? 0) + 1);
  /** The node that stands for a workload: its own node, or that of its folded namespace. */
  const end = (namespace: string, name: string): [string, string] => {
    if (namespace === open || namespace === "") return [namespace, name];
    const node = `${namespace} (${sizes.get(namespace) ?? 0})`;
    folded.set(full("namespaces", node), namespace);
    return ["namespaces", node];
  };
  const workloads = new Map<string, Workload>();
  for (const workload of topology.workloads) {
    const [namespace, name] = end(workload.namespace, workload.name);
    const known = workloads.get(full(namespace, name));
    workloads.set(full(namespace, name), known ? join(known, workload) : { ...workload, namespace, name });
  }
  for (const workload of workloads.values()) workload.success_rate = success(workload);
  const edges = new Map<string, Edge>();
  for (const edge of topology.edges) {
    const [client_namespace, client] = end(edge.client_namespace, edge.client);
    const [server_namespace, server] = end(edge.server_namespace, edge.server);
    const key = `${client_namespace}/${client} ${server_namespace}/${server}`;
    const known = edges.get(key);
    if (!known) edges.set(key, { ...edge, client_namespace, client, server_namespace, server });
    else edges.set(key, { ...join(known, edge), mtls: known.mtls === edge.mtls ? edge.mtls : "partly" });
  }
  for (const edge of edges.values()) edge.success_rate = success(edge);
  return { ...topology, workloads: [...workloads.values()], edges: [...edges.values()], folded };
}

/** The sum of two workloads or edges. Failures of one must not disappear in the sum. */
function join<T extends Workload | Edge>(one: T, other: T): T {
  const sum = {
    ...one,
    requests: one.requests + other.requests,
    failed: one.failed + other.failed,
    given_up: one.given_up + other.given_up,
    denied: one.denied + other.denied,
    requests_per_s: one.requests_per_s + other.requests_per_s,
    statuses: one.statuses.map((count, nth) => count + (other.statuses[nth] ?? 0)) as T["statuses"],
    tcp_opened: one.tcp_opened + other.tcp_opened,
    tcp_open: one.tcp_open + other.tcp_open,
    ejected: one.ejected + other.ejected,
    connect_failures: one.connect_failures + other.connect_failures,
    causes: joinCauses(one.causes, other.causes),
  };
  if ("ready" in one && "ready" in other) {
    return { ...sum, ready: one.ready + other.ready, instances: one.instances + other.instances };
  }
  return sum;
}

function joinCauses(one: Signals["causes"], other: Signals["causes"]): Signals["causes"] {
  const counts = new Map(one.map(({ cause, count }) => [cause, count]));
  for (const { cause, count } of other) counts.set(cause, (counts.get(cause) ?? 0) + count);
  return [...counts].map(([cause, count]) => ({ cause, count })).sort((a, b) => b.count - a.count);
}
