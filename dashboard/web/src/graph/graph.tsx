// Shows the picture of the mesh. The mouse drags and zooms it; the arrow keys move from node to node.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import type { Topology } from "../api";
import { workloadPage } from "../format";
import { change, href, type Place } from "../route";
import { colours, draw, fit, nodeAt, type Colours, type View } from "./draw";
import { fold } from "./fold";
import { layout, type Node } from "./layout";

const ZOOM_STEP = 1.2;
const SCALES = [0.05, 3] as const;

export function Graph({ topology, place }: { topology: Topology; place: Place }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const folded = useMemo(() => fold(topology, place.namespace), [topology, place.namespace]);
  const picture = useMemo(() => layout(folded), [folded]);
  const [focus, setFocus] = useState<string | null>(null);
  const [size, setSize] = useState({ width: 0, height: 0 });
  const [view, setView] = useState<View | null>(null);
  const [dragged, setDragged] = useState(false);
  const colour = useColours(canvas);
  const focused = picture.nodes.find((node) => node.key === focus) ?? null;
  const shape = `${picture.width} ${picture.height} ${size.width} ${size.height}`;
  const current = useMemo(() => view ?? fit(picture, size.width, size.height), [view, shape]);

  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const resized = new ResizeObserver(() => {
      const ratio = devicePixelRatio || 1;
      element.width = Math.round(element.clientWidth * ratio);
      element.height = Math.round(element.clientHeight * ratio);
      setSize({ width: element.clientWidth, height: element.clientHeight });
    });
    resized.observe(element);
    return () => resized.disconnect();
  }, []);

  // Another part of the mesh is at first shown as a whole.
  useEffect(() => setView(null), [place.namespace, place.search]);

  useEffect(() => {
    if (!canvas.current || !colour || size.width === 0) return;
    const frame = requestAnimationFrame(() => canvas.current && draw(canvas.current, picture, { ...current, moves: dragged }, focused, colour));
    return () => cancelAnimationFrame(frame);
  }, [picture, current, dragged, focused, colour, size]);

  const open = (node: Node) => {
    const namespace = folded.folded.get(node.key);
    if (namespace !== undefined) change(place, { namespace });
    else if (!node.outside) location.hash = href(workloadPage(node.namespace, node.name), place);
  };
  const zoom = (factor: number, x = size.width / 2, y = size.height / 2) => {
    const scale = Math.min(Math.max(current.scale * factor, SCALES[0]), SCALES[1]);
    const by = scale / current.scale;
    setView({ scale, x: x - (x - current.x) * by, y: y - (y - current.y) * by });
  };
  const at = (event: MouseEvent) => {
    const box = canvas.current?.getBoundingClientRect();
    const [x, y] = [event.clientX - (box?.left ?? 0), event.clientY - (box?.top ?? 0)];
    return { x, y, node: nodeAt(picture, (x - current.x) / current.scale, (y - current.y) / current.scale) };
  };

  const pressed = (event: KeyboardEvent) => {
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (direction) {
      event.preventDefault();
      setFocus((focused ? next(picture.nodes, focused, direction[0] ?? 0, direction[1] ?? 0) : picture.nodes[0])?.key ?? focus);
    } else if (event.key === "Enter" && focused) open(focused);
    else if (event.key === "+") zoom(ZOOM_STEP);
    else if (event.key === "-") zoom(1 / ZOOM_STEP);
    else if (event.key === "0") setView(null);
    else if (event.key === "Escape" && focused) {
      event.stopPropagation();
      setFocus(null);
    }
  };

  const drag = useRef<{ x: number; y: number; view: View; moved: boolean } | null>(null);
  return (
    <div class="graph">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={`Picture of ${picture.nodes.length} workloads and ${picture.links.length} edges. ${focused ? `${focused.key} is focused: Enter opens its page.` : "The arrow keys walk through it."}`}
        data-workloads={picture.nodes.length}
        data-edges={picture.links.length}
        data-broken={picture.links.filter((link) => link.health === "bad").length}
        onKeyDown={pressed}
        onWheel={(event) => {
          if (!event.ctrlKey && document.activeElement !== canvas.current) return;
          event.preventDefault();
          const { x, y } = at(event);
          zoom(event.deltaY < 0 ? ZOOM_STEP : 1 / ZOOM_STEP, x, y);
        }}
        onPointerDown={(event) => {
          drag.current = { x: event.clientX, y: event.clientY, view: current, moved: false };
          event.currentTarget.setPointerCapture(event.pointerId);
        }}
        onPointerMove={(event) => {
          const from = drag.current;
          if (!from) return;
          const [x, y] = [event.clientX - from.x, event.clientY - from.y];
          from.moved ||= Math.abs(x) + Math.abs(y) > 4;
          if (from.moved) setDragged(true);
          if (from.moved) setView({ ...from.view, x: from.view.x + x, y: from.view.y + y });
        }}
        onPointerUp={(event) => {
          const moved = drag.current?.moved;
          drag.current = null;
          setDragged(false);
          if (!moved) setFocus(at(event).node?.key ?? null);
        }}
        onPointerCancel={() => {
          drag.current = null;
          setDragged(false);
        }}
        onDblClick={(event) => {
          const { node } = at(event);
          if (node) open(node);
        }}
      />
      <div class="tools">
        <button type="button" aria-label="zoom in" onClick={() => zoom(ZOOM_STEP)}>+</button>
        <button type="button" aria-label="zoom out" onClick={() => zoom(1 / ZOOM_STEP)}>−</button>
        <button type="button" onClick={() => setView(null)}>Fit</button>
        {focused && folded.folded.has(focused.key) && (
          <button type="button" onClick={() => open(focused)}>
            Open {focused.name}
          </button>
        )}
        {focused && !focused.outside && !folded.folded.has(focused.key) && (
          <a href={href(workloadPage(focused.namespace, focused.name), place)}>Open {focused.key}</a>
        )}
      </div>
      <p class="legend">
        <span class="dot good" /> well <span class="dot warning" /> warning <span class="dot bad" /> failing <span class="dot idle" /> idle · solid: mTLS, dashed: plaintext
      </p>
    </div>
  );
}

/** The nearest workload in a direction. Distance across that direction counts twice. */
function next(nodes: Node[], from: Node, dx: number, dy: number): Node | null {
  let best: Node | null = null;
  let least = Infinity;
  for (const node of nodes) {
    const along = (node.x - from.x) * dx + (node.y - from.y) * dy;
    const across = Math.abs((node.x - from.x) * dy) + Math.abs((node.y - from.y) * dx);
    if (along > 0 && along + 2 * across < least) [best, least] = [node, along + 2 * across];
  }
  return best;
}

/** The colours of the style sheet. They are read again when the system changes between light and dark mode. */
function useColours(canvas: { current: HTMLCanvasElement | null }): Colours | null {
  const [colour, setColour] = useState<Colours | null>(null);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const read = () => canvas.current && setColour(colours(canvas.current));
    read();
    dark.addEventListener("change", read);
    return () => dark.removeEventListener("change", read);
  }, []);
  return colour;
}
