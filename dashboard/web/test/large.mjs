// Tests the page on a large synthetic mesh: 1,000 workloads in 40 namespaces with 10,000 edges. No mesh runs; this
// program serves the page and answers for an observer.
//
//   node large.mjs check    exits 1 if the amount of drawing exceeds its limits, or if the page misses a change of its
//                           address or loses its content; measures no time
//   node large.mjs bench    prints the time to the first picture, the times of frames while the picture is dragged, and memory
//
//   LENO_BROWSER: the folder with playwright-core       LENO_CHROMIUM: the browser

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.LENO_BROWSER, "node_modules/"));
const { chromium } = require("playwright-core");

const WORKLOADS = 1_000;
const NAMESPACES = 40;
const EDGES = 10_000;
/** The limits for a large mesh: nodes and lines, for 40 namespaces and for the workloads of one open namespace. */
const MOST = { elements: 6_000, rows: 400, nodes: 120, lines: 4_000, strokes: 8_000 };

const now = 1_800_000_000_000;

const signals = (nth) => ({
  success_rate: nth % 97 === 0 ? 0.9 : 1,
  requests: 600,
  failed: nth % 97 === 0 ? 60 : 0,
  given_up: 0,
  denied: 0,
  requests_per_s: 10 + (nth % 7),
  statuses: [0, 600, 0, 0, 0],
  latency_ms: { p50: 1.5, p95: 4, p99: 9 },
  tcp_opened: 0,
  tcp_open: 0,
  tcp_read_bytes_per_s: 0,
  tcp_written_bytes_per_s: 0,
  connect_failures: 0,
  retries: 0,
  ejected: 0,
  causes: [],
});

const name = (nth) => ({ namespace: `team-${String(nth % NAMESPACES).padStart(2, "0")}`, name: `service-${nth}` });

function topology() {
  const workloads = Array.from({ length: WORKLOADS }, (_, nth) => ({ ...name(nth), instances: 3, ready: 3, meshed: true, ...signals(nth) }));
  // A linear congruential generator, so that each run has the same edges.
  let seed = 1;
  const next = () => (seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648) / 2_147_483_648;
  const edges = Array.from({ length: EDGES }, (_, nth) => {
    const client = name(nth % WORKLOADS);
    const server = name(Math.floor(next() * WORKLOADS));
    return {
      client_namespace: client.namespace, client: client.name, server_namespace: server.namespace, server: server.name,
      client_identity: null, server_identity: null, mtls: nth % 50 === 0 ? "none" : "all", ...signals(nth),
    };
  });
  return { mesh: "large", from_ms: now - 60_000, to_ms: now, observed_s: 60, workloads, edges, problems: [], left_out: 7 };
}

const answers = {
  overview: { mesh: "large", now_ms: now, from_ms: now - 3_600_000, to_ms: now, step_ms: 5_000, history_bytes: 1, lost: 0, control_plane: "running", detached: [], silent: [], refused_edit: null },
  topology: topology(),
  changes: { changes: [] },
  proxies: {
    at_ms: now,
    left_out: 0,
    proxies: Array.from({ length: 3 * WORKLOADS }, (_, nth) => {
      const { namespace, name: workload } = name(nth % WORKLOADS);
      return {
        namespace, workload, instance: `${workload}-${Math.floor(nth / WORKLOADS)}`, ready: true, silent: null,
        state: { connected: true, configuration_age_s: 0, resources: 90, rejected: 0, identity: `spiffe://large/ns/${namespace}/sa/${workload}`, certificate_ends_s: now / 1000 + 3_600, connections: 5, max_connections: 1_000, memory_bytes: 1e6, memory_budget_bytes: 1e8 },
      };
    }),
  },
};

const bodies = new Map(Object.entries(answers).map(([path, answer]) => [`/api/v1/${path}`, ["application/json", JSON.stringify(answer)]]));
for (const [path, kind] of [["index.html", "text/html"], ["app.js", "text/javascript"], ["app.css", "text/css"], ["icon.svg", "image/svg+xml"]]) {
  bodies.set(path === "index.html" ? "/" : `/${path}`, [kind, readFileSync(new URL(`../dist/${path}`, import.meta.url))]);
}
const server = createServer((request, response) => {
  const [kind, body] = bodies.get(request.url.split("?")[0]) ?? ["text/plain", null];
  response.writeHead(body === null ? 404 : 200, { "content-type": kind });
  response.end(body ?? "none");
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const address = `http://127.0.0.1:${server.address().port}/`;
const browser = await chromium.launch({ executablePath: process.env.LENO_CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"] });

async function open() {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  page.setDefaultTimeout(120_000);
  // Counts what is drawn, and records when the first picture is there.
  await page.addInitScript(() => {
    const counted = { strokes: 0, first: 0 };
    globalThis.counted = counted;
    for (const method of ["stroke", "fill", "fillText", "strokeRect"]) {
      const own = CanvasRenderingContext2D.prototype[method];
      CanvasRenderingContext2D.prototype[method] = function (...all) {
        counted.strokes += 1;
        counted.first ||= performance.now();
        return own.apply(this, all);
      };
    }
  });
  return page;
}

/** Draws once more, and returns how many drawing operations that took. */
const drawn = (page) =>
  page.evaluate(async () => {
    const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    await frame();
    globalThis.counted.strokes = 0;
    document.querySelector("button[aria-label='zoom in']").click();
    await frame();
    await frame();
    return globalThis.counted.strokes;
  });

async function sizes(page) {
  const canvas = page.locator("canvas");
  const number = async (of) => Number(await canvas.getAttribute(`data-${of}`));
  return {
    nodes: await number("workloads"),
    lines: await number("edges"),
    elements: await page.evaluate(() => document.querySelectorAll("*").length),
    rows: await page.locator("tbody tr").count(),
  };
}

function within(what, found) {
  for (const [of, count] of Object.entries(found)) assert.ok(count <= MOST[of], `${what}: ${count} ${of}, and at most ${MOST[of]} are permitted`);
  console.log(`${what}: ${Object.entries(found).map(([of, count]) => `${count} ${of}`).join(", ")}`);
}

/**
 * Measures the work of the page for the whole mesh, for one open namespace, and for a search that finds nearly
 * everything.
 */
async function check() {
  const page = await open();
  await page.goto(address);
  await page.locator("canvas[data-workloads]").waitFor();
  await page.locator("p", { hasText: / more: search for a name/ }).first().waitFor();
  await page.locator("p", { hasText: "7 workloads, edges and rules of routes are beyond the bound and not shown." }).waitFor();
  within("all namespaces", { ...(await sizes(page)), strokes: await drawn(page) });
  await page.locator("h2 select").selectOption("team-07");
  await page.locator("canvas:not([data-workloads='40'])").waitFor();
  within("one open namespace", { ...(await sizes(page)), strokes: await drawn(page) });
  await page.goto(`${address}#/?q=service-1`);
  await page.locator("tbody tr").first().waitFor();
  within("a search", { ...(await sizes(page)), strokes: await drawn(page) });
  await page.goto(`${address}#/proxies`);
  await page.locator("[aria-labelledby=proxies] tbody tr").first().waitFor();
  const elements = await page.evaluate(() => document.querySelectorAll("*").length);
  within("3,000 proxies", { elements, rows: await page.locator("tbody tr").count() });
  await followsAtOnce();
  await keepsItsContent();
}

/** The page shows an address that changes before the browser has drawn the first frame. */
async function followsAtOnce() {
  const page = await open();
  // The scripts of the page have run by then.
  await page.addInitScript(() => addEventListener("DOMContentLoaded", () => (location.hash = "#/proxies")));
  await page.goto(address);
  await page.locator("[aria-labelledby=proxies] tbody tr").first().waitFor();
  await page.close();
}

/** The page keeps what it shows if the next answer is cut off, and says so. */
async function keepsItsContent() {
  const page = await open();
  await page.goto(address);
  await page.locator("tbody tr").first().waitFor();
  await page.route("**/api/v1/topology?*", (route) => route.fulfill({ status: 200, body: '{"mesh": "large", "edg' }));
  await page.locator("[data-state=disconnected]", { hasText: "was cut off" }).waitFor();
  assert.ok((await page.locator("tbody tr").count()) > 0);
  await page.close();
}

async function bench() {
  const firsts = [];
  for (let nth = 0; nth < 5; nth += 1) {
    const page = await open();
    await page.goto(address);
    await page.waitForFunction(() => globalThis.counted.first > 0);
    firsts.push(await page.evaluate(() => globalThis.counted.first));
    await page.close();
  }
  const page = await open();
  await page.goto(address);
  await page.waitForFunction(() => globalThis.counted.first > 0);
  const frames = [];
  for (const namespace of ["", "team-07"]) {
    await page.locator("h2 select").selectOption(namespace);
    const box = await page.locator("canvas").boundingBox();
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    await page.mouse.move(x, y);
    await page.mouse.down();
    await page.evaluate(() => {
      globalThis.frames = [];
      let before = performance.now();
      const next = () => {
        const at = performance.now();
        globalThis.frames.push(at - before);
        before = at;
        globalThis.asked = requestAnimationFrame(next);
      };
      globalThis.asked = requestAnimationFrame(next);
    });
    for (let step = 0; step < 120; step += 1) await page.mouse.move(x + 3 * step, y + step);
    await page.mouse.up();
    frames.push([namespace || "all namespaces", await page.evaluate(() => (cancelAnimationFrame(globalThis.asked), globalThis.frames))]);
  }
  const heap = await page.evaluate(() => performance.memory?.usedJSHeapSize ?? 0);
  const sorted = (all) => [...all].sort((a, b) => a - b);
  const at = (all, share) => sorted(all)[Math.min(all.length - 1, Math.floor(share * all.length))].toFixed(1);
  console.log(`${WORKLOADS} workloads, ${EDGES} edges`);
  console.log(`first picture: ${at(firsts, 0.5)} ms (median of ${firsts.length}; the aim is 1000)`);
  for (const [of, all] of frames) console.log(`frames while dragging, ${of}: p50 ${at(all, 0.5)} ms, p95 ${at(all, 0.95)} ms, longest ${at(all, 1)} ms of ${all.length} (the aim is 33)`);
  console.log(`memory of the page: ${(heap / 1048576).toFixed(1)} MiB`);
}

try {
  await { check, bench }[process.argv[2]]();
} finally {
  await browser.close();
  server.close();
}
