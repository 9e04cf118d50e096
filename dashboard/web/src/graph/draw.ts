// Draws the picture on a canvas, on which thousands of lines take a few milliseconds. A tree of elements would
// take much longer.

import type { Health } from "../format";
import type { Link, Node, Picture } from "./layout";

export interface View {
  scale: number;
  x: number;
  y: number;
  /** Whether the picture is being dragged. */
  moves?: boolean;
}

export interface Colours {
  text: string;
  quiet: string;
  box: string;
  node: string;
  good: string;
  bad: string;
  warning: string;
  idle: string;
}

/** The colours of the style sheet, which depend on the system's light or dark mode. */
export function colours(of: Element): Colours {
  const style = getComputedStyle(of);
  const read = (name: string) => style.getPropertyValue(`--${name}`).trim();
  return {
    text: read("text"), quiet: read("quiet"), box: read("line"), node: read("card"),
    good: read("good"), bad: read("bad"), warning: read("warning"), idle: read("line"),
  };
}

const NODE_WIDTH = 150;
const NODE_HEIGHT = 28;
/** Below this scale names cannot be read and are left out. */
const READABLE = 0.45;

/**
 * Beyond this number of edges, edges are drawn as plain lines while names cannot be read, and while the picture is
 * dragged.
 */
const MANY = 1_000;

const ORDER: Health[] = ["idle", "good", "warning", "bad"];

/**
 * Draws what is in view. `near` contains the nodes that are linked with the focused workload, or all nodes if none is
 * focused.
 */
export function draw(canvas: HTMLCanvasElement, picture: Picture, view: View, focus: Node | null, colour: Colours): void {
  const context = canvas.getContext("2d");
  if (!context) return;
  const ratio = devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  context.setTransform(ratio * view.scale, 0, 0, ratio * view.scale, ratio * view.x, ratio * view.y);
  context.font = "13px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const group of picture.groups) {
    context.strokeStyle = colour.box;
    context.lineWidth = 1 / view.scale;
    context.strokeRect(group.x, group.y, group.width, group.height);
    context.fillStyle = colour.quiet;
    context.textAlign = "left";
    // The names of namespaces stay readable at every scale.
    const size = 12 / Math.min(view.scale, 1);
    context.font = `${size}px system-ui, sans-serif`;
    context.fillText(group.namespace === "" ? "not in the mesh" : group.namespace, group.x + 8, group.y + size * 0.9, group.width - 8);
    context.font = "13px system-ui, sans-serif";
  }
  const near = nearOf(picture, focus);
  if (focus === null && picture.links.length > MANY && (view.moves || view.scale < READABLE)) {
    drawMany(context, picture.links, 1 / view.scale, colour);
  } else {
    for (const link of picture.links) drawLink(context, link, focus === null || link.from === focus || link.to === focus, colour);
  }
  context.textAlign = "center";
  for (const node of picture.nodes) drawNode(context, node, { lit: near === null || near.has(node), focused: node === focus, named: view.scale >= READABLE }, colour);
  context.globalAlpha = 1;
}

function nearOf(picture: Picture, focus: Node | null): Set<Node> | null {
  if (focus === null) return null;
  const near = new Set([focus]);
  for (const { from, to } of picture.links) {
    if (from === focus) near.add(to);
    if (to === focus) near.add(from);
  }
  return near;
}

/** Draws all edges of a kind in one stroke, which takes a tenth of the time of one curve for each edge. */
function drawMany(context: CanvasRenderingContext2D, links: Link[], width: number, colour: Colours): void {
  context.lineWidth = width;
  for (const health of ORDER) {
    context.globalAlpha = health === "good" || health === "idle" ? 0.25 : 0.9;
    context.strokeStyle = colour[health];
    context.beginPath();
    for (const { health: own, from, to } of links) {
      if (own !== health) continue;
      context.moveTo(from.x, from.y);
      context.lineTo(to.x, to.y);
    }
    context.stroke();
  }
}

function drawLink(context: CanvasRenderingContext2D, link: Link, lit: boolean, colour: Colours): void {
  const { from, to } = link;
  context.globalAlpha = lit ? (link.health === "idle" ? 0.5 : 0.85) : 0.08;
  context.strokeStyle = colour[link.health];
  context.lineWidth = 1.2 + Math.min(3, Math.log10(1 + link.perSecond));
  context.setLineDash(link.encrypted ? [] : [6, 4]);
  const forward = to.x >= from.x;
  const start = from.x + (forward ? NODE_WIDTH / 2 : -NODE_WIDTH / 2);
  const end = to.x - (forward ? NODE_WIDTH / 2 : -NODE_WIDTH / 2);
  const bend = from.x === to.x ? 60 : (end - start) / 2;
  context.beginPath();
  context.moveTo(start, from.y);
  if (from === to) context.arc(from.x, from.y - NODE_HEIGHT / 2, 12, 0, 2 * Math.PI);
  else context.bezierCurveTo(start + bend, from.y, end - bend, to.y, end, to.y);
  context.stroke();
  context.setLineDash([]);
  if (from === to) return;
  const tip = forward ? -7 : 7;
  context.fillStyle = colour[link.health];
  context.beginPath();
  context.moveTo(end, to.y);
  context.lineTo(end + tip, to.y - 4);
  context.lineTo(end + tip, to.y + 4);
  context.fill();
}

function drawNode(context: CanvasRenderingContext2D, node: Node, is: { lit: boolean; focused: boolean; named: boolean }, colour: Colours): void {
  context.globalAlpha = is.lit ? 1 : 0.2;
  context.beginPath();
  context.roundRect(node.x - NODE_WIDTH / 2, node.y - NODE_HEIGHT / 2, NODE_WIDTH, NODE_HEIGHT, 6);
  context.fillStyle = colour.node;
  context.fill();
  context.lineWidth = is.focused ? 3 : 1.5;
  context.strokeStyle = is.focused ? colour.text : node.unready ? colour.warning : colour[node.health];
  context.setLineDash(node.outside ? [4, 3] : []);
  context.stroke();
  context.setLineDash([]);
  if (!is.named) return;
  context.fillStyle = colour.text;
  context.fillText(node.name, node.x, node.y + 1, NODE_WIDTH - 12);
}

/** The workload at a point of the picture. */
export const nodeAt = (picture: Picture, x: number, y: number): Node | null =>
  picture.nodes.find((node) => Math.abs(node.x - x) <= NODE_WIDTH / 2 && Math.abs(node.y - y) <= NODE_HEIGHT / 2) ?? null;

/** The view that shows the whole picture. */
export function fit(picture: Picture, width: number, height: number): View {
  const scale = Math.min((width - 24) / Math.max(picture.width, 1), (height - 24) / Math.max(picture.height, 1), 1.2);
  return { scale, x: (width - picture.width * scale) / 2, y: (height - picture.height * scale) / 2 };
}
