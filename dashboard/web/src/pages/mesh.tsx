// The whole mesh: what is broken, the picture, and the same data as tables.

import { useMemo } from "preact/hooks";

import type { Edge, Topology } from "../api";
import type { PageProps } from "../app";
import { full } from "../format";
import { Graph } from "../graph/graph";
import { Beyond } from "../lists";
import { Problems } from "../problems";
import { change, type Place } from "../route";
import { EdgeTable, WorkloadTable } from "../tables";

/**
 * The part of a mesh that matches the search and the namespace: workloads, and edges that begin or end at one of
 * them.
 */
export function filtered(topology: Topology, { search, namespace }: Pick<Place, "search" | "namespace">): Topology {
  const wanted = search.trim().toLowerCase();
  if (wanted === "" && namespace === "") return topology;
  const fits = (ns: string, name: string) => (namespace === "" || ns === namespace) && full(ns, name).toLowerCase().includes(wanted);
  const touches = (edge: Edge) => fits(edge.client_namespace, edge.client) || fits(edge.server_namespace, edge.server);
  const edges = topology.edges.filter(touches);
  const ends = new Set(edges.flatMap((edge) => [full(edge.client_namespace, edge.client), full(edge.server_namespace, edge.server)]));
  const workloads = topology.workloads.filter((one) => fits(one.namespace, one.name) || ends.has(full(one.namespace, one.name)));
  return { ...topology, edges, workloads };
}

export function MeshPage({ place, topology, now }: PageProps) {
  const shown = useMemo(() => filtered(topology, place), [topology, place.search, place.namespace]);
  const namespaces = useMemo(() => [...new Set(topology.workloads.map((one) => one.namespace))].sort(), [topology]);
  return (
    <>
      <h1 class="unseen">The mesh</h1>
      <Problems problems={topology.problems} place={place} now={now} />
      <section aria-labelledby="picture">
        <h2 id="picture">
          What calls what{" "}
          <label>
            <span class="unseen">namespace</span>
            <select value={place.namespace} onChange={(event) => change(place, { namespace: event.currentTarget.value })}>
              <option value="">all namespaces</option>
              {namespaces.map((namespace) => (
                <option key={namespace}>{namespace}</option>
              ))}
            </select>
          </label>
        </h2>
        <Graph topology={shown} place={place} />
        <Beyond count={topology.left_out} what="workloads, edges and rules of routes" />
      </section>
      <EdgeTable edges={shown.edges} place={place} />
      <WorkloadTable workloads={shown.workloads} place={place} />
    </>
  );
}
