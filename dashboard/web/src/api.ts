// The types of the interface's answers, as in dashboard/api/src/api.rs. The page only reads.

import { moment, type Moment } from "./moment";

export type ControlPlane = "running" | "away" | "not_needed";
export type Mtls = "all" | "partly" | "none";
export type Severity = "bad" | "warning";
export type MarkKind = "documents" | "refused" | "instance" | "control_plane";

export interface Overview {
  mesh: string;
  now_ms: number;
  from_ms: number | null;
  to_ms: number | null;
  step_ms: number;
  history_bytes: number;
  lost: number;
  control_plane: ControlPlane;
  detached: string[];
  silent: string[];
  refused_edit: string | null;
}

export interface Signals {
  /** The share of the answered requests that succeeded; null if none was answered. */
  success_rate: number | null;
  requests: number;
  /** Requests that failed, according to their status or grpc-status. */
  failed: number;
  /** Requests that the client abandoned before a response began. */
  given_up: number;
  /** Requests that an authorization policy denied. */
  denied: number;
  requests_per_s: number;
  statuses: [number, number, number, number, number];
  latency_ms: { p50: number | null; p95: number | null; p99: number | null };
  tcp_opened: number;
  tcp_open: number;
  tcp_read_bytes_per_s: number;
  tcp_written_bytes_per_s: number;
  connect_failures: number;
  retries: number;
  ejected: number;
  causes: { cause: string; count: number }[];
}

export interface Workload extends Signals {
  namespace: string;
  name: string;
  instances: number;
  ready: number;
  meshed: boolean;
}

export interface Edge extends Signals {
  client_namespace: string;
  client: string;
  server_namespace: string;
  server: string;
  client_identity: string | null;
  server_identity: string | null;
  mtls: Mtls;
}

export type About =
  | { kind: "control_plane" }
  | { kind: "documents" }
  | { kind: "proxies" }
  | { kind: "workload"; namespace: string; name: string }
  | { kind: "edge"; client_namespace: string; client: string; server_namespace: string; server: string };

export interface Problem {
  severity: Severity;
  about: About;
  title: string;
  evidence: string[];
  since_ms: number | null;
  /** The changes shortly before, the newest first. */
  changes: Mark[];
  /** The likely culprit, judging by the evidence. */
  culprit: string;
  /** The command that shows more; empty if there is none. */
  more: string;
}

export interface Topology {
  mesh: string;
  from_ms: number;
  to_ms: number;
  observed_s: number;
  workloads: Workload[];
  edges: Edge[];
  problems: Problem[];
  /** How many workloads, edges and route rules did not fit into the history; the largest number at any time. */
  left_out: number;
}

export interface Route extends Signals {
  namespace: string;
  service: string;
  /** `HTTPRoute shop/cart`; empty for requests that match no rule. */
  route: string;
  rule: string;
}

export interface Routes {
  routes: Route[];
  left_out: number;
}

export interface Point extends Signals {
  at_ms: number;
  observed_s: number;
  ready: number | null;
}

export interface Points {
  step_ms: number;
  points: Point[];
}

export interface Mark {
  at_ms: number;
  kind: MarkKind;
  lines: string[];
}

/** What a proxy reports about itself. */
export interface ProxyState {
  /** Whether the control plane is connected; null if the proxy uses none. */
  connected: boolean | null;
  /** The time since the control plane last answered; 0 while it is connected. */
  configuration_age_s: number;
  resources: number;
  rejected: number;
  identity: string | null;
  certificate_ends_s: number | null;
  connections: number;
  max_connections: number;
  memory_bytes: number;
  memory_budget_bytes: number;
}

export interface Proxy {
  namespace: string;
  workload: string;
  instance: string;
  ready: boolean;
  /** Why it did not answer. */
  silent: string | null;
  state: ProxyState | null;
}

export interface Proxies {
  at_ms: number | null;
  proxies: Proxy[];
  left_out: number;
}

export interface Denied {
  client_namespace: string;
  client: string;
  server_namespace: string;
  server: string;
  count: number;
}

export interface Policy {
  kind: string;
  namespace: string;
  name: string;
  action: string;
  rules: number;
  selects: string[];
  workloads: [string, string][];
  left_out: number;
  /** How many times running proxies have made each decision because of it. */
  decisions: Record<string, number>;
  /** The clients that policies of its kind denied at its workloads in the window. */
  denied: Denied[];
  /** The number of pairs of client and server that `denied` leaves out. */
  denied_left_out?: number;
}

export interface Policies {
  from_ms: number;
  to_ms: number;
  policies: Policy[];
  left_out: number;
  unavailable: string | null;
}

/** A condition of a route or a policy. */
export interface Condition {
  /** The object to which the route or policy is attached. */
  of: string;
  type: string;
  status: string;
  reason: string;
  message: string;
}

export interface Document {
  kind: string;
  namespace: string;
  name: string;
  yaml: string;
  status: Condition[];
  no_status: string | null;
}

export interface Flow {
  namespace: string;
  workload: string;
  peer_namespace: string;
  peer: string;
  role: string;
  socket: string;
  sent_bytes_per_s: number;
  received_bytes_per_s: number;
  opened: number;
  ends: Record<string, number>;
  segments: number;
  retransmits: number;
  handshake_ms: number | null;
  round_trip_ms: number | null;
}

export interface Flows {
  span_s: number;
  level: string | null;
  unavailable: string | null;
  flows: Flow[];
  drops: { namespace: string; workload: string; reason: string; count: number }[];
  left_out: number;
  silent: string[];
  trimmed: string[];
  trimmed_nodes: number;
}

export type Level = "good" | "warning" | "bad" | "unknown";

export interface Finding {
  subject: string;
  /** The question that the check answers. */
  asks: string;
  level: Level;
  text: string;
  remedy?: string;
}

/** The results of `leno check`. */
export interface Checks {
  at_ms: number;
  groups: { name: string; findings: Finding[] }[];
}

export interface Certificate {
  subject: string;
  sha256: string;
  not_before_unix_s: number;
  not_after_unix_s: number;
}

/** The output of `leno identity`. */
export interface Authority {
  at_ms: number;
  authority: {
    trust_domain: string;
    phase: string;
    own_root: boolean;
    chain: Certificate[];
    roots: Certificate[];
    others: Certificate[];
    federated: Record<string, Certificate[]>;
    proxies: { connected: number; current: number; waiting_total: number };
    revoked: string[];
    problem: string | null;
  };
}

/** A request that a tap has recorded. */
export interface Tapped {
  at_unix_us: number;
  client: string;
  client_identity: string | null;
  server: string;
  server_identity: string | null;
  mtls: boolean;
  method: string;
  authority: string;
  target: string;
  route: string | null;
  retries: number;
  status: number;
  error: string | null;
  latency: {
    total_us: number;
    client_proxy_us: number | null;
    network_us: number | null;
    server_proxy_us: number | null;
    application_us: number | null;
    response_us: number | null;
  };
}

export interface TapPage {
  requests: Tapped[];
  /** The number of requests beyond the rate of the tap; `dropped` is the number that proxies have dropped. */
  beyond: number;
  dropped: number;
}

/**
 * The token in the address that leno has printed. It is removed from the browser's history, and sent only to this
 * server.
 */
function takeToken(): string | null {
  const found = /^#token=([\w.~+/=-]+)$/.exec(location.hash);
  if (found?.[1]) {
    sessionStorage.setItem("leno-token", found[1]);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("leno-token");
}

const token = takeToken();

/** An answer that is an error, with a message for the page. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

function headers(): Record<string, string> {
  // Pages of other sites cannot send this header, and therefore cannot open taps.
  const all: Record<string, string> = { "Leno-Page": "1" };
  if (token) all["Authorization"] = `Bearer ${token}`;
  return all;
}

async function get<T>(path: string, parameters: Record<string, string | number | undefined>, signal: AbortSignal): Promise<T> {
  if (moment) {
    if (!(path in moment.answers)) throw new Refused(404, "it is not in this file, which has one moment of the mesh");
    return moment.answers[path] as T;
  }
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined) query.set(name, String(value));
  }
  let response: Response;
  try {
    response = await fetch(`/api/v1/${path}?${query}`, { headers: headers(), signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Refused(0, "leno dashboard does not answer: it has ended, or this machine is off the network");
  }
  const body: unknown = await response.json().catch(() => undefined);
  if (!response.ok) {
    const said = body && typeof body === "object" && "error" in body ? String(body.error) : response.statusText;
    throw new Refused(response.status, said);
  }
  // The page keeps its last value after an error. It must not take the lack of a value for one.
  if (body === undefined) throw new Refused(0, "the answer of leno dashboard was cut off");
  return body as T;
}

/** The content of a moment's file: what this reader may see, without anything that is only for administrators. */
export async function momentOf(at: number | undefined, window: number, signal: AbortSignal): Promise<Moment> {
  const of = async (path: string, parameters: Record<string, number>) => [path, await get(path, parameters, signal)] as const;
  // These answers exist only for the present, and not for every mesh.
  const ofNow = (path: string) =>
    of(path, {}).catch((error) => {
      if (error instanceof Refused && error.status === 404) return null;
      throw error;
    });
  const now = await overview(signal);
  const at_ms = Math.round(at ?? now.to_ms ?? now.now_ms);
  const wanted = [
    of("topology", { at: at_ms, window }),
    of("routes", { at: at_ms, window }),
    of("policies", { at: at_ms, window }),
    of("changes", { from: (now.from_ms ?? at_ms) - 1, to: at_ms }),
    ...(at === undefined ? [ofNow("proxies"), ofNow("flows")] : []),
  ];
  const there = (await Promise.all(wanted)).filter((one) => one !== null);
  return { saved_ms: now.now_ms, at_ms, window_ms: window, answers: { overview: now, ...Object.fromEntries(there) } };
}

export const overview = (signal: AbortSignal) => get<Overview>("overview", {}, signal);

export const topology = (at: number | undefined, window: number, signal: AbortSignal) =>
  get<Topology>("topology", { at, window }, signal);

export const routes = (at: number | undefined, window: number, signal: AbortSignal) =>
  get<Routes>("routes", { at, window }, signal);

export const proxies = (signal: AbortSignal) => get<Proxies>("proxies", {}, signal);

export const policies = (at: number | undefined, window: number, signal: AbortSignal) =>
  get<Policies>("policies", { at, window }, signal);

export const document = (kind: string, namespace: string, name: string, signal: AbortSignal) =>
  get<Document>("document", { kind, name: `${namespace}/${name}` }, signal);

export const flows = (signal: AbortSignal) => get<Flows>("flows", {}, signal);

export const checks = (signal: AbortSignal) => get<Checks>("checks", {}, signal);

export const authority = (signal: AbortSignal) => get<Authority>("authority", {}, signal);

export const tap = (parameters: Record<string, string>, signal: AbortSignal) => get<TapPage>("tap", parameters, signal);

/** Closes a tap, even while the page is being closed. Proxies close a tap that is no longer polled. */
export function closeTap(id: string): void {
  void fetch(`/api/v1/tap?${new URLSearchParams({ id, close: "true" })}`, { headers: headers(), keepalive: true }).catch(() => undefined);
}

export type Wanted = { workload: string } | { client: string; server: string };

export const series = (wanted: Wanted, from: number, to: number, signal: AbortSignal) =>
  get<Points>("series", { ...wanted, from: Math.floor(from), to: Math.ceil(to) }, signal);

export const changes = (from: number, to: number, signal: AbortSignal) =>
  get<{ changes: Mark[] }>("changes", { from: Math.floor(from), to: Math.ceil(to) }, signal);
