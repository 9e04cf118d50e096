// The route rules: how many requests to each service follow which rule, and how these requests ended.

import * as api from "../api";
import type { PageProps } from "../app";
import { full } from "../format";
import { Beyond } from "../lists";
import { TICK, useLoaded } from "../load";
import { RouteTable } from "../tables";

export function RoutesPage({ place }: PageProps) {
  const { at, window, search, namespace } = place;
  const loaded = useLoaded(`routes ${at} ${window}`, at === undefined ? TICK : null, (signal) => api.routes(at, window, signal));
  const wanted = search.trim().toLowerCase();
  const fits = (one: api.Route) =>
    (namespace === "" || one.namespace === namespace) &&
    [full(one.namespace, one.service), one.route, one.rule].some((name) => name.toLowerCase().includes(wanted));
  return (
    <section class="routes">
      <h1 class="unseen">Routes</h1>
      {loaded.error !== null && <p class="state bad">The rules are not known: {loaded.error}.</p>}
      {loaded.value && <RouteTable routes={loaded.value.routes.filter(fits)} place={place} />}
      <Beyond count={loaded.value?.left_out ?? 0} what="workloads, edges and rules of routes" />
      <p class="quiet">
        Services without an HTTPRoute or a GRPCRoute have no rules. The first figures of a rule come with its first request.
      </p>
    </section>
  );
}
