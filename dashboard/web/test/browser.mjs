// Drives the dashboard of a real mesh in headless Chromium; the test that starts the mesh is
// cli/tests/up/dashboard.rs.
//
//   node browser.mjs STAGE ADDRESS     LENO_BROWSER: where playwright-core and axe-core are
//                                      LENO_CHROMIUM: the browser
//                                      LENO_SCREENSHOTS: where screenshots are stored; none are made without it

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";

const [stage, address] = process.argv.slice(2);
const require = createRequire(join(process.env.LENO_BROWSER, "node_modules/"));
const { chromium } = require("playwright-core");
const axe = require.resolve("axe-core/axe.min.js");

const browser = await chromium.launch({
  executablePath: process.env.LENO_CHROMIUM,
  // The sandbox is off because the test runs as root and opens only its own pages.
  args: ["--no-sandbox", "--disable-gpu"],
});

/** A page whose console and requests are watched. */
async function open({ width = 1280, height = 900, dark = false, bypassCSP = false } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: dark ? "dark" : "light", bypassCSP });
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  const complaints = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complaints.push(`${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => complaints.push(`uncaught: ${error}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(address.split("#")[0])) complaints.push(`leaves for ${request.url()}`);
    if (request.method() !== "GET") complaints.push(`${request.method()} ${request.url()}`);
  });
  return { page, complaints };
}

/** Opens a path of the page. The page keeps the token from the address with which it was opened. */
async function visit(page, path) {
  const [base] = address.split("#");
  if (!page.url().startsWith(base)) await page.goto(address);
  await page.goto(base + path);
}

/** Takes screenshots of the page for the documentation, in a wide window and in a small one. */
async function shot(page, name) {
  const folder = process.env.LENO_SCREENSHOTS;
  if (!folder) return;
  const wide = page.viewportSize();
  for (const [size, suffix] of [[wide, ""], [{ width: 390, height: 844 }, "-small"]]) {
    await page.setViewportSize(size);
    // The picture of the mesh is drawn in a separate animation frame.
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    await page.screenshot({ path: join(folder, `${name}${suffix}.png`) });
  }
  await page.setViewportSize(wide);
}

/** Checks that nothing is wider than the window, and that axe finds no problem. */
async function looks(path, options) {
  const { page, complaints } = await open({ ...options, bypassCSP: true });
  await visit(page, path);
  await page.locator("main h1, main h2").first().waitFor({ state: "attached" });
  await page.locator("td, .chart, dl.figures, [data-state=unavailable]").first().waitFor();
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wide <= 0, `${path} is ${wide} px wider than ${options.width} px`);
  await page.addScriptTag({ path: axe });
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" | ")}`);
  assert.deepEqual(found, [], `${path} ${JSON.stringify(options)}`);
  assert.deepEqual(complaints, []);
  await page.context().close();
}

const EDGE = "#/edge/shop/front/shop/cart";

/** Checks that the page shows `–` for a percentile of too few requests, as `leno stat` does. */
async function percentilesNeedRequests() {
  const { page, complaints } = await open();
  let requests = 0;
  await page.route("**/api/v1/topology?*", async (route) => {
    const response = await route.fetch();
    const topology = await response.json();
    for (const edge of topology.edges) Object.assign(edge, { requests, latency_ms: { p50: 1, p95: 2, p99: 3 } });
    await route.fulfill({ response, json: topology });
  });
  const cell = "[aria-labelledby=edges] tr:has-text('shop/cart') td:nth-child(6)";
  for (const [count, p95, p99] of [[19, "–", "–"], [20, "2.00 ms", "–"], [99, "2.00 ms", "–"], [100, "2.00 ms", "3.00 ms"]]) {
    requests = count;
    await page.goto("about:blank");
    await page.goto(address);
    await page.locator(cell).first().waitFor();
    assert.equal(await page.locator(cell).first().innerText(), p99, `p99 of ${count}`);
    const table = page.locator(".table", { has: page.locator("#edges") });
    assert.equal(await table.getByText("p99 needs 100 requests").count(), p99 === "–" ? 1 : 0);
    await visit(page, EDGE);
    const figure = (name) => page.locator("dl.figures div", { has: page.locator("dt", { hasText: name }) }).locator("dd").innerText();
    assert.deepEqual([await figure("p50"), await figure("p95"), await figure("p99")], ["1.00 ms", p95, p99], `${count}`);
  }
  assert.deepEqual(complaints, []);
  await page.context().close();
}

/** Every page, the filters, the slider and the keys, of a mesh in which `front` has begun to fail at `cart`. */
async function mesh() {
  const { page, complaints } = await open();
  const bodies = new Map();
  const loaded = (response) => {
    if (!response.url().includes("/api/")) bodies.set(response.url(), response.body());
  };
  page.on("response", loaded);
  await page.goto(address);

  // The problem comes first, and links to the edge.
  const problem = page.locator(".problems li.bad a").filter({ hasText: "shop/front to shop/cart" });
  await problem.waitFor();
  assert.match(await page.locator(".problems").innerText(), /of them by the application itself/);
  assert.match(await page.locator(".problems .before").first().innerText(), /Workload shop\/front changed/);
  const canvas = page.locator("canvas");
  await page.locator("canvas[data-workloads='3'][data-edges='2']").waitFor();
  await shot(page, "dashboard-mesh");
  await problem.click();
  await page.locator("h1", { hasText: "shop/front → shop/cart" }).waitFor();
  assert.match(await page.locator("article").innerText(), /mTLS/);
  assert.match(await page.locator("article").innerText(), /5xx/);
  await page.locator(".chart path.line0").first().waitFor({ state: "attached" });
  await page.locator(".chart line.mark").first().waitFor({ state: "attached" });
  await shot(page, "dashboard-edge");
  await percentilesNeedRequests();

  // A link leads from there to a workload, and a key leads back.
  await page.locator("h1 a", { hasText: "shop/cart" }).click();
  await page.locator("h1", { hasText: /^shop\/cart$/ }).waitFor();
  assert.match(await page.locator("dl.figures").first().innerText(), /1 of 1 ready/);
  await shot(page, "dashboard-workload");
  await page.keyboard.press("Escape");
  await canvas.waitFor();

  // The search narrows the picture and both tables, and is part of the address.
  await page.keyboard.press("/");
  await page.keyboard.type("web");
  await page.locator("canvas[data-edges='1']").waitFor();
  assert.ok(page.url().endsWith("#/?q=web"), page.url());
  await page.locator("[aria-labelledby=edges] tbody tr").nth(1).waitFor({ state: "detached" });
  assert.equal(await page.locator("[aria-labelledby=edges] tbody tr").count(), 1);
  await page.keyboard.press("Escape");
  await page.locator("canvas[data-edges='2']").waitFor();
  await page.locator("h2 select").selectOption("shop");
  await page.locator("h2 select").selectOption("");

  // The arrow keys move through the picture, and Enter opens the focused node.
  await canvas.focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  await page.locator("article h1", { hasText: "shop/" }).waitFor();
  await page.goBack();
  await canvas.waitFor();

  // Nothing was broken before the change. The mark leads to the change, and the slider to the time before it.
  assert.equal(await page.locator(".live").getAttribute("aria-pressed"), "true");
  const mark = page.locator(".marks .documents").last();
  assert.match(await mark.getAttribute("title"), /Workload shop\/front changed/);
  await page.locator("nav a", { hasText: "Changes" }).click();
  const before = page.locator(".changes li.documents a", { hasText: "before" }).last();
  assert.match(await page.locator(".changes").innerText(), /Workload shop\/front changed/);
  await shot(page, "dashboard-changes");
  await before.click();
  await page.locator(".well", { hasText: "Nothing at" }).waitFor();
  assert.equal(await page.locator(".live").getAttribute("aria-pressed"), "false");
  assert.match(page.url(), /at=\d+/);
  const slider = page.locator(".timeline input");
  const then = Number(await slider.inputValue());
  await slider.focus();
  await page.keyboard.press("End");
  await page.locator(".live[aria-pressed=true]").waitFor();
  await problem.waitFor();
  await page.keyboard.press("Home");
  await page.locator(".live[aria-pressed=false]").waitFor();
  assert.ok(Number(await slider.inputValue()) <= then);
  await page.keyboard.press("l");
  await page.locator(".live[aria-pressed=true]").waitFor();

  // The saved moment is one file, which any browser opens without this program and which loads nothing from the
  // network.
  const saved = page.waitForEvent("download");
  await page.locator("button", { hasText: "Save this moment as a file" }).click();
  const download = await saved;
  assert.match(download.suggestedFilename(), /^leno-[\w.-]+\.html$/);
  const file = join(await mkdtemp(join(tmpdir(), "leno-moment-")), "moment.html");
  await download.saveAs(file);
  const alone = await browser.newContext({ offline: true, viewport: { width: 1280, height: 900 } });
  const kept = await alone.newPage();
  const asked = [];
  kept.on("request", (request) => asked.push(request.url()));
  kept.on("console", (message) => asked.push(message.text()));
  kept.on("pageerror", (error) => asked.push(`uncaught: ${error}`));
  await kept.goto(pathToFileURL(file).href);
  await kept.locator("[data-state=saved]", { hasText: "It has this moment alone" }).waitFor();
  await kept.locator(".problems li.bad a", { hasText: "shop/front to shop/cart" }).waitFor();
  await kept.locator("canvas[data-workloads='3'][data-edges='2']").waitFor();
  assert.equal(await kept.locator(".timeline").count() + await kept.locator("footer.save").count(), 0);
  await shot(kept, "dashboard-saved");
  await kept.locator("nav a", { hasText: "Changes" }).click();
  await kept.locator(".changes", { hasText: /Workload shop\/front changed/ }).waitFor();
  await kept.locator("nav a", { hasText: "Checks" }).click();
  await kept.locator("[data-state=unavailable]", { hasText: "is not in this file" }).waitFor();
  assert.deepEqual(asked.filter((one) => !one.startsWith("data:")), [pathToFileURL(file).href]);
  await alone.close();
  await rm(dirname(file), { recursive: true });

  // The page is closed when all bodies have arrived, and nothing more is requested after that.
  page.off("response", loaded);
  const total = (await Promise.all(bodies.values())).reduce((sum, body) => sum + body.length, 0);
  assert.ok(total > 0 && total <= 300_000, `the first load is ${total} bytes`);
  assert.deepEqual(complaints, []);
  await page.context().close();

  for (const path of ["", EDGE, "#/workload/shop/cart"]) {
    for (const [width, dark] of [[1280, false], [1280, true], [390, false]]) await looks(path, { width, dark });
  }
  const night = await open({ dark: true });
  await night.page.goto(address);
  await night.page.locator(".problems li").first().waitFor();
  await night.page.locator("canvas[data-edges='2']").waitFor();
  await shot(night.page, "dashboard-dark");
}

/**
 * Tests the route rules: two of `web`, and the requests that match none; filters, the time control, and a small
 * window.
 */
async function routes() {
  const { page, complaints } = await open();
  await page.goto(address);
  await page.locator("nav a", { hasText: "Routes" }).click();
  const row = (rule) => page.locator("[aria-labelledby=routes] tbody tr", { hasText: rule });
  await row("pages").waitFor();
  assert.match(await row("pages").innerText(), /shop\/web\s+HTTPRoute shop\/web\s+pages\s+[\d.]+ %/);
  await row("no rule matches").waitFor();
  assert.ok((await page.locator("[aria-labelledby=routes] tbody tr").count()) >= 3);
  await page.locator("a[aria-current=page]", { hasText: "Routes" }).waitFor();

  // The search narrows the table, and the address can be shared.
  await page.keyboard.press("/");
  await page.keyboard.type("pages");
  await page.locator("[aria-labelledby=routes] tbody tr").nth(1).waitFor({ state: "detached" });
  assert.ok(page.url().endsWith("#/routes?q=pages"), page.url());
  const shared = await open();
  await shared.page.goto(page.url());
  await shared.page.locator("[aria-labelledby=routes] tbody tr", { hasText: "pages" }).waitFor();
  assert.equal(await shared.page.locator("[aria-labelledby=routes] tbody tr").count(), 1);
  await shared.page.context().close();
  await page.keyboard.press("Escape");
  await row("no rule matches").waitFor();

  // Before the mesh started, no request followed a rule.
  const slider = page.locator(".timeline input");
  await slider.focus();
  await page.keyboard.press("Home");
  await page.locator(".live[aria-pressed=false]").waitFor();
  await page.keyboard.press("l");
  await row("pages").waitFor();
  await shot(page, "dashboard-routes");

  // The route's own page shows its document and the findings about it.
  await row("pages").locator("a").click();
  await page.locator("h1", { hasText: "HTTPRoute shop/web" }).waitFor();
  await page.locator("pre", { hasText: "kind: HTTPRoute" }).waitFor();
  assert.match(await page.locator("[aria-labelledby=conditions] tbody").innerText(), /Analyzed\s+True\s+NoMistakes/);
  assert.ok((await page.locator("[aria-labelledby=routes] tbody tr").count()) >= 1);
  await shot(page, "dashboard-route");
  assert.deepEqual(complaints, []);
  await page.context().close();
  for (const [width, dark] of [[1280, false], [1280, true], [390, false]]) for (const path of ["#/routes", "#/route/HTTPRoute/shop/web"]) await looks(path, { width, dark });
}

/**
 * Tests requests that no server answered: `front` abandons all its requests to `cart`, and `locked` denies those of
 * `customer`.
 */
async function unanswered() {
  const { page, complaints } = await open();
  await page.goto(address);
  const row = (ends) => page.locator("[aria-labelledby=edges] tbody tr", { hasText: ends });
  const given = row("shop/front → shop/cart");
  await given.locator("td", { hasText: "100 % given up" }).waitFor();
  await given.locator(".dot.bad").waitFor();
  assert.equal(await given.locator("td").nth(1).innerText(), "–");
  const denied = row("shop/customer → shop/locked");
  await denied.locator("td", { hasText: "100 % denied" }).waitFor();
  await denied.locator(".dot.warning").waitFor();
  assert.equal(await denied.locator("td").nth(1).innerText(), "–");
  await page.locator("canvas[data-broken='2']").waitFor();
  await given.locator("a").click();
  await page.locator("dl.figures dd", { hasText: /^100 % \(\d+\)$/ }).waitFor();
  assert.match(await page.locator("article").innerText(), /Given up by the client/);
  // The chart appears when its series has been loaded.
  await page.locator("article", { hasText: "not answered" }).waitFor();
  await visit(page, "#/workload/shop/locked");
  await page.locator("h1", { hasText: "shop/locked" }).waitFor();
  await page.locator("dl.figures dt", { hasText: "Denied by a policy" }).waitFor();
  await page.locator(".causes code", { hasText: "authorization-denied" }).waitFor();
  assert.deepEqual(complaints, []);
  await page.context().close();

  // In a large mesh, a namespace is one node. Nothing in it was answered, so the node must not be green. The edges
  // are those of this mesh; workloads of the other namespace are added to the answer.
  const large = await open();
  await large.page.route("**/api/v1/topology*", async (route) => {
    const response = await route.fetch();
    const topology = await response.json();
    const [one] = topology.workloads;
    for (let nth = 0; nth < 160; nth += 1) topology.workloads.push({ ...one, namespace: "other", name: `idle-${nth}` });
    topology.edges = topology.edges.filter((edge) => edge.client !== "customer" || edge.server === "locked");
    await route.fulfill({ response, json: topology });
  });
  await large.page.goto(address);
  await large.page.locator("canvas[data-workloads='2'][data-edges='1'][data-broken='1']").waitFor();
  assert.deepEqual(large.complaints, []);
  await large.page.context().close();
  for (const width of [1280, 390]) await looks("#/edge/shop/front/shop/cart", { width, dark: false });
  await looks("#/workload/shop/locked", { width: 390, dark: true });
}

/** Tests live requests of the workload `client`, which sends three different kinds. The address contains a token. */
async function live() {
  const { page, complaints } = await open();
  const [base] = address.split("#");
  await page.goto(address);
  await page.locator("tbody a", { hasText: "shop/client" }).first().waitFor();
  assert.equal(page.url(), base, "the token stays in no address");
  await page.goto(`${base}#/workload/shop/client`);
  await page.locator("a", { hasText: "Live requests" }).click();
  await page.locator("h1", { hasText: "Live requests of shop/client" }).waitFor();
  const row = (text) => page.locator(".tapped tbody tr", { hasText: text });
  await row("GET web:8080/nothing").first().waitFor();
  const rule = row("HTTPRoute shop/web rule pages").first();
  await rule.waitFor();
  // Both proxies have reported their parts of the time.
  await row("application").first().waitFor();
  assert.match(await row("application").first().innerText(), /shop\/client-0\s+shop\/web-0\s+GET web:8080\/.*200\s+[\d.]+ ms/s);
  await shot(page, "dashboard-live");

  // Each filter opens another tap and closes the one before. Only four taps may be open at once.
  const others = { "/old": "/nothing", "/nothing": "/old" };
  for (const path of ["/old", "/nothing", "/old", "/nothing", "/old"]) {
    await page.getByLabel("Path begins with").fill(path);
    await page.locator("button", { hasText: "Filter" }).click();
    // The rows that were shown before have the path of the other filter.
    await row(`web:8080${others[path]}`).first().waitFor({ state: "detached" });
    await row(`web:8080${path}`).first().waitFor();
    assert.equal(await row(`web:8080${others[path]}`).count(), 0);
  }
  await page.locator("button", { hasText: "Pause" }).click();
  await page.locator("button[aria-pressed=true]", { hasText: "Go on" }).waitFor();
  assert.deepEqual(complaints, []);

  // Without the token nothing is shown, and a page of another site cannot open a tap.
  const status = (headers, more = "id=1&workload=shop/client") =>
    page.evaluate(async ([headers, more]) => (await fetch(`/api/v1/tap?${more}`, { headers })).status, [headers, more]);
  assert.equal(await status({ "Leno-Page": "1" }), 401);
  const token = address.split("#token=")[1];
  assert.equal(await status({ Authorization: `Bearer ${token}` }), 400);
  assert.equal(await status({ Authorization: `Bearer ${token}`, "Leno-Page": "1" }), 200);
  // Errors that another request would not change must not be 502, because the page repeats a request after 502
  // every second.
  for (const [more, code] of [["id=2&workload=shop/nosuch", 400], ["id=3&workload=shop/client&status=x", 400], ["id=1&close=true", 200]]) {
    assert.equal(await status({ Authorization: `Bearer ${token}`, "Leno-Page": "1" }, more), code, more);
  }
  await page.context().close();
  for (const width of [1280, 390]) {
    const seen = await open({ width, bypassCSP: true });
    await seen.page.goto(address);
    await seen.page.goto(`${base}#/live/shop/client`);
    await seen.page.locator(".tapped tbody tr").first().waitFor();
    const wide = await seen.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${wide} px wider than ${width} px`);
    await seen.page.addScriptTag({ path: axe });
    const { violations } = await seen.page.evaluate(() => globalThis.axe.run());
    assert.deepEqual(violations.map(({ id }) => id), []);
    await seen.page.context().close();
  }
}

const present = () => ofThePresent(true);
const present_without_flows = () => ofThePresent(false);

/**
 * Tests policies, certificates, proxies, connections and checks, on a mesh in which a policy denies requests of
 * `customer` to `locked`.
 */
async function ofThePresent(flows) {
  const { page, complaints } = await open();
  await page.goto(address);
  const go = async (name) => {
    await page.locator("nav a", { hasText: name }).click();
    await page.locator("a[aria-current=page]", { hasText: name }).waitFor();
  };
  const row = (table, text) => page.locator(`[aria-labelledby=${table}] tbody tr`, { hasText: text });
  /** Checks that the search and the filter narrow a table and are part of the address, and that Escape clears both. */
  const narrows = async (table, text, none, filter) => {
    await page.keyboard.press("/");
    await page.keyboard.type("nosuchname");
    await page.locator("p", { hasText: none }).first().waitFor();
    assert.match(page.url(), /q=nosuchname/);
    await page.keyboard.press("Escape");
    await row(table, text).first().waitFor();
    await page.getByLabel("Show").selectOption(filter);
    assert.match(page.url(), new RegExp(`f=${filter}`));
    const shared = await open();
    await shared.page.goto(page.url());
    await shared.page.locator("main section").first().waitFor();
    assert.equal(await shared.page.getByLabel("Show").inputValue(), filter);
    await shared.page.context().close();
    await page.locator("body").press("Escape");
    await row(table, text).first().waitFor();
    assert.doesNotMatch(page.url(), /f=/);
  };

  await go("Policies");
  await row("policies", "shop/locked").locator(".dot.warning").waitFor();
  assert.match(await row("policies", "shop/locked").innerText(), /AuthorizationPolicy, Allow\s+workloads with app=locked\s+1\s+.*not-allowed \d+.*\s+\d+/);
  await narrows("policies", "shop/locked", "None that fits.", "denies");
  await shot(page, "dashboard-policies");
  await row("policies", "shop/locked").locator("a").click();
  await page.locator("h1", { hasText: "AuthorizationPolicy shop/locked" }).waitFor();
  assert.match(await row("denied", "shop/customer").innerText(), /shop\/customer\s+shop\/locked\s+\d+/);
  await row("selected", "shop/locked").locator("a").waitFor();
  await page.locator("pre", { hasText: "kind: AuthorizationPolicy" }).waitFor();
  assert.match(await page.locator("[aria-labelledby=conditions] tbody").innerText(), /Analyzed\s+Unknown\s+policy-matches-nothing/);
  await shot(page, "dashboard-policy");
  await row("denied", "shop/customer").locator("a").click();
  await page.locator("h1", { hasText: "shop/customer → shop/locked" }).waitFor();

  await go("Certificates");
  await row("signers", "root, trusted").waitFor();
  await row("signers", "signs workloads").waitFor();
  await row("leaves", "shop/customer-0").waitFor();
  assert.match(await row("leaves", "shop/customer-0").innerText(), /spiffe:\/\/\S+\/ns\/shop\/sa\/\S+\s+ends in/);
  await narrows("leaves", "shop/customer-0", "None that fits.", "soon");
  await shot(page, "dashboard-certificates");

  await go("Proxies");
  await row("proxies", "shop/locked-0").waitFor();
  assert.match(await row("proxies", "shop/locked-0").innerText(), /shop\/locked-0\s+locked\s+current\s+ends in/);
  await narrows("proxies", "shop/locked-0", "None that fits.", "troubled");
  await shot(page, "dashboard-proxies");
  await row("proxies", "shop/locked-0").locator("a").click();
  await page.locator("h1", { hasText: "Proxy of shop/locked-0" }).waitFor();
  await page.locator("dl.figures", { hasText: "current" }).waitFor();
  await shot(page, "dashboard-proxy");
  await visit(page, "#/proxy/shop/nosuch");
  await page.locator("p", { hasText: "No proxy of this name is there." }).waitFor();

  await go("Connections");
  if (flows) {
    await row("flows", "shop/customer").first().waitFor();
    assert.match(await page.locator(".flows").innerText(), /accounted for: \w+/);
    await narrows("flows", "shop/customer", "None that fits.", "proxy");
    await shot(page, "dashboard-connections");
  } else {
    await page.locator("[data-state=unavailable]", { hasText: "does not account for connections" }).waitFor();
  }

  await go("Checks");
  await row("the-mesh", "shop/locked proxy").or(row("the-mesh", "shop/locked-0 proxy")).first().waitFor();
  assert.ok((await page.locator("[aria-labelledby=this-machine] tbody tr").count()) > 0);
  await narrows("the-mesh", "shop/", "None that fits.", "troubled");
  await shot(page, "dashboard-checks");

  // The past has no such data, and the page says so.
  const slider = page.locator(".timeline input");
  await slider.focus();
  await page.keyboard.press("Home");
  await page.locator("p", { hasText: "This page shows the present" }).waitFor();
  await page.keyboard.press("l");
  await page.locator("p", { hasText: "This page shows the present" }).waitFor({ state: "detached" });

  // If the page is not served by `leno dashboard`, for example by the observer itself, it says what is missing.
  const other = await open();
  await other.page.route("**/api/v1/checks*", (route) => route.fulfill({ status: 200, json: { at_ms: 1, groups: [{ name: "The mesh", findings: [] }] } }));
  await visit(other.page, "#/checks");
  await other.page.locator("p", { hasText: "Nothing to check." }).waitFor();
  assert.deepEqual(other.complaints, []);
  await other.page.route("**/api/v1/authority*", (route) => route.fulfill({ status: 404, json: { error: "leno dashboard shows this" } }));
  await visit(other.page, "#/certificates");
  await other.page.locator("[data-state=unavailable]", { hasText: "leno dashboard shows this" }).waitFor();
  await other.page.locator("[aria-labelledby=leaves] tbody tr").first().waitFor();
  // An invalid date must not blank the page.
  const endless = { namespace: "shop", workload: "endless", instance: "endless-0", ready: true, silent: null, state: { certificate_ends_s: 1e300, identity: "spiffe://d/ns/shop/sa/endless" } };
  await other.page.route("**/api/v1/proxies*", (route) => route.fulfill({ status: 200, json: { at_ms: 1, proxies: [endless], left_out: 0 } }));
  await other.page.locator("[aria-labelledby=leaves] tbody tr td[title='– UTC']").waitFor();
  assert.deepEqual(other.complaints.filter((one) => !one.includes("404")), []);
  await other.page.context().close();

  assert.deepEqual(complaints, []);
  await page.context().close();
  const paths = ["#/policies", "#/policy/AuthorizationPolicy/shop/locked", "#/certificates", "#/proxies", "#/proxy/shop/locked-0", "#/flows", "#/checks"];
  for (const path of paths) {
    for (const [width, dark] of [[1280, false], [1280, true], [390, false]]) await looks(path, { width, dark });
  }
}

/** Tests that the page shows when the control plane does not answer, and that the figures continue. */
async function away() {
  const { page, complaints } = await open();
  await page.goto(address);
  await page.locator("[data-state=control-plane-away]").waitFor();
  await page.locator(".problems", { hasText: "the control plane does not answer" }).waitFor();
  await page.locator("tbody tr").first().waitFor();
  await shot(page, "dashboard-away");
  assert.deepEqual(complaints, []);
}

/** Tests a mesh that ends while a page is open: the content stays, with a note on its age. */
async function gone() {
  const { page, complaints } = await open();
  await page.goto(address);
  await page.locator("tbody tr").first().waitFor();
  console.log("open");
  await page.locator("[data-state=disconnected]").waitFor();
  assert.ok((await page.locator("tbody tr").count()) > 0);
  // The browser itself reports the answer 502.
  assert.deepEqual(complaints.filter((line) => !line.includes("502")), []);
}

/** The pages, each with the part of the interface from which it gets its data. */
const PARTS = [
  ["Mesh", "topology"],
  ["Routes", "routes"],
  ["Policies", "policies"],
  ["Certificates", "proxies"],
  ["Proxies", "proxies"],
  ["Connections", "flows"],
  ["Checks", "checks"],
  ["Changes", "changes"],
];

/** Waits until a table of the page contains a text. The error contains what the page shows instead. */
async function shows(page, name, text) {
  try {
    await page.locator("main td", { hasText: text }).first().waitFor();
  } catch (error) {
    throw new Error(`${name} does not show ${text}: ${await page.locator("main").innerText()}`, { cause: error });
  }
}

/**
 * Tests every page that a cluster's observer serves itself, with the token of a reader in the address. LENO_SEEN lists the
 * namespaces that the reader may see, LENO_HIDDEN texts that no page may show.
 */
async function cluster() {
  const words = (name) => (process.env[name] ?? "").split(",").filter((word) => word !== "");
  const [seen, hidden] = [words("LENO_SEEN"), words("LENO_HIDDEN")];
  const [base] = address.split("#");
  for (const [width, dark] of [[1280, false], [390, true]]) {
    const { page, complaints } = await open({ width, dark, bypassCSP: true });
    await page.goto(address);
    await page.locator(".brand .mesh").filter({ hasText: /./ }).waitFor();
    assert.equal(page.url(), base, "the token stays in the address");
    for (const [name, part] of PARTS) {
      // Opens a page and waits for its next answer, even if there is nothing to show.
      const answer = page.waitForResponse((response) => response.url().startsWith(`${base}api/v1/${part}?`));
      await page.locator("nav a", { hasText: name }).click();
      await page.locator("a[aria-current=page]", { hasText: name }).waitFor();
      await (await answer).finished();
      await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
      await page.locator("main p, main td, main li").first().waitFor();
      const text = await page.locator("main").innerText();
      for (const word of hidden) assert.ok(!text.includes(word), `${name} shows ${word}: ${text}`);
      if (["Mesh", "Policies", "Proxies", "Connections"].includes(name)) {
        for (const word of seen) await shows(page, name, `${word}/`);
        if (seen.length === 0) assert.equal(await page.locator("main td", { hasText: "/" }).count(), 0, text);
      }
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(wide <= 0, `${name} is ${wide} px wider than ${width} px`);
      await page.addScriptTag({ path: axe });
      const { violations } = await page.evaluate(() => globalThis.axe.run());
      assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" | ")}`), [], name);
    }
    // Only `leno dashboard` answers checks and certificates. Elsewhere the browser itself reports the answer 404.
    assert.deepEqual(complaints.filter((line) => !line.includes("404")), []);
    if (seen.length > 0) {
      await page.locator("nav a", { hasText: "Mesh" }).click();
      await page.locator("main td a", { hasText: `${seen[0]}/` }).first().click();
      await page.locator("main h1", { hasText: `${seen[0]}/` }).waitFor();
    }
    await page.context().close();
  }
  // Without the token, the page says that it needs one.
  const { page } = await open();
  await page.goto(base);
  await page.locator("[data-state=disconnected]", { hasText: "requires a token" }).waitFor();
  await page.context().close();
}

try {
  await { cluster, mesh, routes, live, unanswered, present, present_without_flows, away, gone }[stage]();
} finally {
  await browser.close();
}
