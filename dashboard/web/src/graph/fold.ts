// A large mesh by namespaces: a thousand workloads at once are no picture. The namespace that is looked at keeps its
// workloads, and every other one is a single node.

import type { Edge, Topology, Workload } from "../api";
import { full } from "../format";

/** Above this many workloads namespaces are folded. */
const MOST = 150;

export interface Folded extends Topology {
  /** The namespaces that are one node each, by the name of that node. */
  folded: Map<string, string>;
}

export function fold(topology: Topology, open: string): Folded {
  const folded = new Map<string, string>();
  if (topology.workloads.length <= MOST) return { ...topology, folded };
  const sizes = new Map<string, number>();
  for (const { namespace } of topology.workloads) sizes.set(namespace, (sizes.get(namespace) ?? 0) + 1);
  /** Where a workload is drawn: in its namespace, or as it. */
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
  for (const workload of workloads.values()) workload.success_rate = share(workload);
  const edges = new Map<string, Edge>();
  for (const edge of topology.edges) {
    const [client_namespace, client] = end(edge.client_namespace, edge.client);
    const [server_namespace, server] = end(edge.server_namespace, edge.server);
    const key = `${client_namespace}/${client} ${server_namespace}/${server}`;
    const known = edges.get(key);
    if (!known) edges.set(key, { ...edge, client_namespace, client, server_namespace, server });
    else edges.set(key, { ...join(known, edge), mtls: known.mtls === edge.mtls ? edge.mtls : "partly" });
  }
  for (const edge of edges.values()) edge.success_rate = share(edge);
  return { ...topology, workloads: [...workloads.values()], edges: [...edges.values()], folded };
}

/** The sum of two; what fails in one of them is not to disappear in the other. */
function join<T extends Workload | Edge>(one: T, other: T): T {
  const sum = {
    ...one,
    requests: one.requests + other.requests,
    requests_per_s: one.requests_per_s + other.requests_per_s,
    statuses: one.statuses.map((count, nth) => count + (other.statuses[nth] ?? 0)) as T["statuses"],
    tcp_opened: one.tcp_opened + other.tcp_opened,
    tcp_open: one.tcp_open + other.tcp_open,
    ejected: one.ejected + other.ejected,
    connect_failures: one.connect_failures + other.connect_failures,
    causes: one.causes.length > 0 ? one.causes : other.causes,
  };
  if ("ready" in one && "ready" in other) {
    return { ...sum, ready: one.ready + other.ready, instances: one.instances + other.instances };
  }
  return sum;
}

const share = ({ requests, statuses }: Workload | Edge) => (requests > 0 ? 1 - statuses[4] / requests : null);
