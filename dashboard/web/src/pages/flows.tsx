// The connections that the kernel accounts for, in the last minute.

import * as api from "../api";
import type { PageProps } from "../app";
import { bytes, full, milliseconds, percent, workloadPage, type Health } from "../format";
import { Beyond, Filters, OfNow, Unavailable, fits } from "../lists";
import { TICK, useLoaded } from "../load";
import { href } from "../route";
import { MAX_ROWS, Mark, Table } from "../tables";

/**
 * The smallest number of retransmitted segments, and their smallest share, for connections that count as lossy, as in
 * `leno why`.
 */
const MIN_LOST = 5;
const MIN_SHARE = 0.02;

const isReset = (end: string) => end.startsWith("reset") || end.includes("timed") || end.includes("refused");

function health(flow: api.Flow): Health {
  const lost = flow.retransmits >= MIN_LOST && flow.retransmits >= MIN_SHARE * flow.segments;
  return lost || Object.keys(flow.ends).some(isReset) ? "warning" : "good";
}

const words = (end: string) => end.replaceAll("_", " ");

export function FlowsPage({ place }: PageProps) {
  const loaded = useLoaded("flows", TICK, api.flows);
  const all = loaded.value?.flows ?? [];
  const shown = all.filter(
    (one) =>
      fits(place, [one.namespace, one.peer_namespace], [full(one.namespace, one.workload), full(one.peer_namespace, one.peer)]) &&
      (place.filter === "" || (place.filter === "troubled" ? health(one) !== "good" : one.socket === place.filter)),
  );
  const rows = shown.slice(0, MAX_ROWS).map((one) => (
    <tr key={[one.namespace, one.workload, one.peer_namespace, one.peer, one.role, one.socket].join(" ")}>
      <td>
        <Mark is={health(one)} />{" "}
        {one.namespace === "" ? one.workload : <a href={href(workloadPage(one.namespace, one.workload), place)}>{full(one.namespace, one.workload)}</a>}
      </td>
      <td>{one.role === "server" ? "from" : "to"} {full(one.peer_namespace, one.peer)}</td>
      <td>{one.socket}</td>
      <td class="number">{bytes(one.sent_bytes_per_s)}</td>
      <td class="number">{bytes(one.received_bytes_per_s)}</td>
      <td class="number">{one.opened}</td>
      <td>{Object.entries(one.ends).map(([end, count]) => `${words(end)} ${count}`).join(", ") || "–"}</td>
      <td class="number">{one.segments > 0 ? percent(one.retransmits / one.segments) : "–"}</td>
      <td class="number">{milliseconds(one.round_trip_ms)}</td>
    </tr>
  ));
  const drops = (loaded.value?.drops ?? []).filter((one) => fits(place, [one.namespace], [full(one.namespace, one.workload), one.reason]));
  const dropped = drops.slice(0, MAX_ROWS).map((one) => (
    <tr key={`${one.namespace} ${one.workload} ${one.reason}`}>
      <td>{full(one.namespace, one.workload)}</td>
      <td><code>{one.reason}</code></td>
      <td class="number partly">{one.count}</td>
    </tr>
  ));
  const silent = loaded.value?.silent ?? [];
  const trimmed = loaded.value?.trimmed ?? [];
  return (
    <section class="flows">
      <h1 class="unseen">Connections</h1>
      <OfNow place={place} />
      {loaded.error !== null && <Unavailable>{loaded.error}</Unavailable>}
      {loaded.value?.unavailable != null && <Unavailable>{loaded.value.unavailable}</Unavailable>}
      {silent.length > 0 && <p class="state bad"><strong>{silent.length} nodes are missing:</strong> {silent.slice(0, 3).join("; ")}.</p>}
      <Filters place={place} namespaces={all.map((one) => one.namespace)} filters={[["troubled", "with losses or resets"], ["application", "of applications"], ["proxy", "of proxies"], ["wire", "of frames"]]} />
      <Table id="flows" heading="Connections that the kernel counts" columns={["Workload", "Other end", "Socket of", "Sent", "Received", "Opened", "Ended", "Sent again", "Round trip"]} rows={rows} left={shown.length - rows.length} none={all.length === 0 ? "Nothing was counted yet." : "None that fits."} />
      <Table id="drops" heading="Packets that the kernel dropped" columns={["Workload", "The kernel's reason", "Packets"]} rows={dropped} left={drops.length - dropped.length} none="None." />
      <Beyond count={loaded.value?.left_out ?? 0} what="rows" />
      {trimmed.length > 0 && <p class="quiet">Left out of {loaded.value?.trimmed_nodes ?? trimmed.length} nodes, those with the most rows: {trimmed.slice(0, 3).join("; ")}.</p>}
      {loaded.value && <p class="quiet">Of the last {Math.round(loaded.value.span_s)} s{loaded.value.level !== null && <>; accounted for: {loaded.value.level}</>}. Single connections: <code>leno flows</code>.</p>}
    </section>
  );
}
