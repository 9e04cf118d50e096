// The place that the page shows. It is the part of the address after `#`, so that the address can be shared and
// the back button works. `#/edge/shop/web/shop/cart?at=1700000000000&window=300000&q=cart`

import { useLayoutEffect, useState } from "preact/hooks";

export interface Place {
  parts: string[];
  /** The moment that is shown; undefined follows the present. */
  at: number | undefined;
  /** The length of the window that ends at that moment. */
  window: number;
  /** The text that names must contain. */
  search: string;
  namespace: string;
  /** The filter of a list in addition to the search; empty for none. */
  filter: string;
}

const WINDOW = 60_000;

function read(): Place {
  const [path = "", query = ""] = location.hash.replace(/^#/, "").split("?");
  const parameters = new URLSearchParams(query);
  const number = (name: string) => {
    const value = Number(parameters.get(name));
    return Number.isFinite(value) && value > 0 ? value : undefined;
  };
  return {
    parts: path.split("/").filter((part) => part !== "").map((part) => (part === "-" ? "" : decodeURIComponent(part))),
    at: number("at"),
    window: number("window") ?? WINDOW,
    search: parameters.get("q") ?? "",
    namespace: parameters.get("ns") ?? "",
    filter: parameters.get("f") ?? "",
  };
}

/** The address of a page, with the moment and the filters of this one. */
export function href(path: string, place: Place, change: Partial<Place> = {}): string {
  const { at, window, search, namespace, filter } = { ...place, ...change };
  const parameters = new URLSearchParams();
  if (at !== undefined) parameters.set("at", String(Math.round(at)));
  if (window !== WINDOW) parameters.set("window", String(window));
  if (search !== "") parameters.set("q", search);
  if (namespace !== "") parameters.set("ns", namespace);
  if (filter !== "") parameters.set("f", filter);
  const query = parameters.toString();
  return `#${path}${query === "" ? "" : `?${query}`}`;
}

export const here = (place: Place) => `/${place.parts.map((part) => (part === "" ? "-" : encodeURIComponent(part))).join("/")}`;

/**
 * Shows another moment or filter on the same page. This adds no entries to the browser's history, because dragging
 * would add many.
 */
export function change(place: Place, to: Partial<Place>): void {
  history.replaceState(null, "", href(here(place), place, to));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function usePlace(): Place {
  const [place, setPlace] = useState(read);
  // A plain effect runs after the next frame. The page would never show an address that changes before that.
  useLayoutEffect(() => {
    const moved = () => setPlace(read());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return place;
}
