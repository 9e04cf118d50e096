// Formats figures and names for people.

import type { About, Edge, Signals } from "./api";

export const percent = (share: number | null) => (share === null ? "–" : `${(share * 100).toFixed(share > 0.9995 && share < 1 ? 3 : share === 1 ? 0 : 2)} %`);

export function rate(perSecond: number): string {
  if (perSecond === 0) return "0";
  if (perSecond < 10) return perSecond.toFixed(2);
  if (perSecond < 1000) return perSecond.toFixed(perSecond < 100 ? 1 : 0);
  return `${(perSecond / 1000).toFixed(1)} k`;
}

export function milliseconds(ms: number | null): string {
  if (ms === null) return "–";
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms.toFixed(ms < 10 ? 2 : ms < 100 ? 1 : 0)} ms`;
}

export function bytes(perSecond: number): string {
  const units = ["B/s", "KiB/s", "MiB/s", "GiB/s"];
  let unit = 0;
  while (perSecond >= 1024 && unit < units.length - 1) {
    perSecond /= 1024;
    unit += 1;
  }
  return `${perSecond.toFixed(unit === 0 ? 0 : 1)} ${units[unit]}`;
}

export function size(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${bytes.toFixed(unit === 0 ? 0 : 1)} ${units[unit]}`;
}

/** A duration in the largest unit that fits, as `leno check` writes it. */
export function length(seconds: number): string {
  if (seconds >= 172_800) return `${Math.round(seconds / 86_400)} days`;
  if (seconds >= 7_200) return `${Math.round(seconds / 3_600)} h`;
  if (seconds >= 120) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds)} s`;
}

const two = (number: number) => String(number).padStart(2, "0");

export function clock(ms: number): string {
  const time = new Date(ms);
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

export function ago(ms: number, now: number): string {
  const seconds = Math.max(0, Math.round((now - ms) / 1000));
  if (seconds < 120) return `${seconds} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

/** `shop/web`, or a name that belongs to no namespace. */
export const full = (namespace: string, name: string) => (namespace === "" ? name : `${namespace}/${name}`);

export const mtls = (edge: Edge) => ({ all: "mTLS", partly: "partly mTLS", none: "plaintext" })[edge.mtls];

/** The share of the answered requests that did not fail, as `leno stat` computes it (decision 074). */
export function success({ requests, failed, given_up, denied }: Signals): number | null {
  const answered = Math.max(0, requests - given_up - denied);
  return answered > 0 ? Math.max(0, 1 - failed / answered) : null;
}

/** The smallest numbers of requests for which a percentile differs from the slowest request, as for `leno stat`. */
const FEWEST_FOR_P95 = 20;
const FEWEST_FOR_P99 = 100;

/** The percentiles for which there are enough requests. With fewer, the p99 would just be the slowest request. */
export function latency({ requests, latency_ms: { p50, p95, p99 } }: Pick<Signals, "requests" | "latency_ms">): Signals["latency_ms"] {
  return { p50, p95: requests >= FEWEST_FOR_P95 ? p95 : null, p99: requests >= FEWEST_FOR_P99 ? p99 : null };
}

/** An edge counts as broken from this share of given-up requests on, as for `leno why`. A few are normal, because users cancel. */
const MIN_GIVEN_UP = 0.1;

/** The health of an edge or a workload, which selects its colour and its word. */
export type Health = "good" | "bad" | "warning" | "idle";

export function health(signals: Signals): Health {
  const { success_rate: success, connect_failures, causes, requests, given_up, denied } = signals;
  if (success !== null && success < 0.99) return "bad";
  if (given_up >= 2 && given_up >= requests * MIN_GIVEN_UP) return "bad";
  if (requests === 0 && (connect_failures > 0 || causes.length > 0)) return "bad";
  if (signals.ejected > 0 || given_up > 0 || denied > 0 || (success !== null && success < 1)) return "warning";
  return requests > 0 || signals.tcp_opened > 0 || signals.tcp_open > 0 ? "good" : "idle";
}

/** The address of the page about a workload. */
export const workloadPage = (namespace: string, name: string) => `/workload/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;

export const livePage = (namespace: string, name: string) => `/live/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;

export const proxyPage = (namespace: string, instance: string) => `/proxy/${encodeURIComponent(namespace)}/${encodeURIComponent(instance)}`;

export const policyPage = (policy: { kind: string; namespace: string; name: string }) =>
  `/policy/${[policy.kind, policy.namespace, policy.name].map(encodeURIComponent).join("/")}`;

/** The address of the page about a route such as `HTTPRoute shop/cart`; null if the text is not the name of a route. */
export function routePage(route: string): string | null {
  const [, kind, namespace, name] = /^(\w+Route) ([^/ ]+)\/([^/ ]+)$/.exec(route) ?? [];
  return kind && namespace && name ? `/route/${[kind, namespace, name].map(encodeURIComponent).join("/")}` : null;
}

export const edgePage = (edge: { client_namespace: string; client: string; server_namespace: string; server: string }) =>
  `/edge/${[edge.client_namespace, edge.client, edge.server_namespace, edge.server].map((part) => encodeURIComponent(part === "" ? "-" : part)).join("/")}`;

export function aboutPage(about: About): string | null {
  if (about.kind === "workload") return workloadPage(about.namespace, about.name);
  if (about.kind === "edge") return edgePage(about);
  return null;
}
