// The parts that pages about the present have in common: a list that a search narrows, and the reason why there is
// no list.

import type { ComponentChildren } from "preact";

import { change, type Place } from "./route";

/** Whether a row with these texts matches the search and the namespace of the page. */
export function fits(place: Place, namespaces: string[], texts: string[]): boolean {
  const wanted = place.search.trim().toLowerCase();
  if (place.namespace !== "" && !namespaces.includes(place.namespace)) return false;
  return wanted === "" || texts.some((text) => text.toLowerCase().includes(wanted));
}

interface FiltersProps {
  place: Place;
  namespaces: string[];
  /** The values of the filter and their labels, besides the one for everything. */
  filters: [string, string][];
}

export function Filters({ place, namespaces, filters }: FiltersProps) {
  const known = [...new Set([...namespaces, place.namespace])].filter((one) => one !== "").sort();
  return (
    <div class="filter">
      {filters.length > 0 && (
        <label>
          Show{" "}
          <select value={place.filter} onChange={(event) => change(place, { filter: event.currentTarget.value })}>
            <option value="">all</option>
            {filters.map(([value, words]) => (
              <option key={value} value={value}>{words}</option>
            ))}
          </select>
        </label>
      )}
      <label>
        Namespace{" "}
        <select value={place.namespace} onChange={(event) => change(place, { namespace: event.currentTarget.value })}>
          <option value="">all namespaces</option>
          {known.map((namespace) => (
            <option key={namespace}>{namespace}</option>
          ))}
        </select>
      </label>
    </div>
  );
}

/** Says that the content of a page is not available here, and why. */
export const Unavailable = ({ children }: { children: ComponentChildren }) => (
  <p class="state" data-state="unavailable">
    <strong>Not available here:</strong> {children}.
  </p>
);

/** Says that the page shows the present, if the slider is at another moment. */
export const OfNow = ({ place }: { place: Place }) =>
  place.at === undefined ? null : <p class="quiet">This page shows the present: the history has none of it.</p>;

export const Beyond = ({ count, what }: { count: number; what: string }) =>
  count > 0 ? <p class="quiet">{count} {what} are beyond the bound and not shown.</p> : null;
