// The console: reads the events of /console/events and draws them. Times are milliseconds on the controller's clock.
"use strict";

const KEEP_MS = 120_000; // history in the page
const KEEP_ACTIONS = 60_000, KEEP_FRAMES = 2_000;
const SPANS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120]; // visible seconds
const COLOURS = 10;
const HIDDEN_MS = 10_000; // a hidden page disconnects after this time
const REFUSAL_LANE = 26, ROW = 40, AXIS = 20;
const NOT_SERVERS_FAULT = ["CANCELLED", "INVALID_INPUT", "UNKNOWN_MODEL", "TOO_LARGE", "UNAUTHENTICATED", "FORBIDDEN"];

const byId = (id) => document.getElementById(id);
const canvas = byId("timeline");
const pen = canvas.getContext("2d");
const state = {
  bounds: [], statuses: {}, actions: [], refusals: [], frames: [], shares: new Map(), colours: new Map(),
  cluster: null, tuner: undefined, now: 0, missing: 0,
  span: SPANS.indexOf(10), end: null, // `end` is null while the view follows the newest action
  frozenAt: null, filter: "", row: 0, selected: null, key: sessionStorage.getItem("horologe-key") || "",
};

// ---- Connection

let abort = null, retryMs = 1000, retryTimer = 0, hiddenTimer = 0;

function setState(name, text) {
  byId("state").dataset.state = name;
  if (byId("state").textContent !== text) byId("state").textContent = text;
}

async function connect() {
  clearTimeout(retryTimer);
  if (abort) return;
  abort = new AbortController();
  const headers = state.key ? { Authorization: `Bearer ${state.key}` } : {};
  let reason = "the server has closed the stream";
  try {
    const response = await fetch("/console/events", { headers, signal: abort.signal, cache: "no-store" });
    if (response.status === 401) return askForKey("The server does not accept this key.");
    if (response.status === 403 && state.key) return askForKey(`${(await response.json()).error}.`);
    if (!response.ok) throw new Error((await response.json()).error);
    showContent();
    await readEvents(response.body.getReader());
  } catch (error) {
    if (error.name === "AbortError") return;
    reason = error.message;
  } finally {
    abort = null;
  }
  setState("off", "disconnected");
  showAlert(`Not connected: ${reason}. Trying again.`);
  retryTimer = setTimeout(connect, retryMs);
  retryMs = Math.min(2 * retryMs, 10_000);
}

function disconnect() {
  clearTimeout(retryTimer);
  if (abort) abort.abort();
}

async function readEvents(reader) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const [name, data] = event.split("\n");
      handleEvent(name.slice("event: ".length), JSON.parse(data.slice("data: ".length)));
    }
  }
}

function handleEvent(name, data) {
  retryMs = 1000;
  if (name === "begin") {
    state.bounds = data.bounds_ms;
    state.statuses = data.statuses;
    byId("traffic-of").textContent = `Requests that came to ${data.frontend}.`;
  } else if (name === "frame") {
    addFrame(data);
    draw();
  }
}

function askForKey(problem = "") {
  byId("sign-in-error").textContent = state.key ? problem : "";
  state.key = "";
  sessionStorage.removeItem("horologe-key");
  byId("sign-in").hidden = false;
  byId("content").hidden = byId("sign-out").hidden = true;
  setState("wait", "sign in");
  byId("key").value = "";
  byId("key").focus();
}

function showContent() {
  byId("sign-in").hidden = true;
  byId("content").hidden = false;
  byId("sign-out").hidden = !state.key;
  if (state.key) sessionStorage.setItem("horologe-key", state.key);
  resize();
}

function showAlert(text) {
  byId("alert").hidden = !text;
  if (byId("alert").textContent !== text) byId("alert").textContent = text;
}

// ---- Data

function addFrame(frame) {
  const activity = frame.activity && readActivity(frame.activity);
  let at = activity ? activity.now : state.now + 1000 * frame.interval_s;
  if (at > state.now - 2000) {
    at = Math.max(at, state.now);
  } else { // another controller, with another clock
    Object.assign(state, { actions: [], refusals: [], frames: [], end: null, selected: null, frozenAt: null });
    state.shares.clear();
  }
  state.now = at;
  const isFull = state.actions.length >= KEEP_ACTIONS || state.frames.length >= KEEP_FRAMES;
  if (state.frozenAt === null || !isFull) { // a paused view keeps what it shows
    if (activity) {
      state.actions.push(...activity.actions);
      state.refusals.push(...activity.refusals);
    }
    state.frames.push({ at, seconds: frame.interval_s, traffic: frame.traffic, activity });
  }
  if (frame.cluster) {
    state.cluster = readCluster(frame.cluster);
    state.tuner = frame.tuner || null;
    for (const share of state.cluster.shares) shareOf(share.worker, share.share);
  }
  const oldest = Math.min(at, state.frozenAt ?? at) - KEEP_MS;
  const excess = state.frozenAt === null ? state.actions.length - KEEP_ACTIONS : 0;
  const old = state.actions.findIndex((action) => action.end >= oldest);
  state.actions.splice(0, Math.max(old, excess, 0));
  state.refusals = state.refusals.filter((refusal) => refusal.at >= oldest);
  state.frames = state.frames.filter((one) => one.at >= oldest);
  const problems = (frame.missing || []).join("; ");
  showAlert(problems || (frame.ready ? "" : "The frontend is not ready: no selector or no controller is connected."));
}

function readActivity([, , number, now, actions, refusals, shares, missing]) {
  return {
    now: now / 1e6, missing,
    actions: actions.map(readAction).sort((one, other) => one.end - other.end),
    refusals: refusals.map(([at, model, reason, count, missingNs]) => ({
      at: at / 1e6, model, reason, count, missing: missingNs / 1e6,
    })),
    busy: shares.map(([worker, share, count, ns]) => ({ share: shareOf(worker, share), count, ms: ns / 1e6 })),
  };
}

function readAction([kind, worker, number, model, size, requests, planBegin, planEnd, begin, end, status, late]) {
  return {
    kind, model, size, requests, status, late, share: shareOf(worker, number), planBegin: planBegin / 1e6,
    planEnd: planEnd / 1e6, begin: begin / 1e6, end: end / 1e6,
  };
}

function readCluster([, , shares, scheduler, pending, , worstServed]) {
  const names = ["worker", "share", "device", "pagesTotal", "pagesFree", "resident", "actionsPending", "freeAt", "exec",
    "load", "hardware", "kept", "percent"];
  return {
    scheduler, pending, worstServed,
    shares: shares.map((fields) => {
      const share = Object.fromEntries(names.map((name, place) => [name, fields[place]]));
      const [id, type] = fields[13] || [];
      return { ...share, deviceId: id || share.worker, type: type || share.hardware || share.device };
    }),
  };
}

function shareOf(worker, number) {
  const name = worker.split("#")[0];
  const label = number ? `${name}.${number}` : name;
  if (!state.shares.has(label)) {
    state.shares.set(label, { label });
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    state.shares = new Map([...state.shares].sort(([one], [other]) => compare(one, other)));
  }
  return state.shares.get(label);
}

function colourOf(model) {
  if (!state.colours.has(model)) state.colours.set(model, state.colours.size % COLOURS);
  return state.colours.get(model);
}

// ---- View

const spanMs = () => 1000 * SPANS[state.span];
const viewEnd = () => state.end ?? state.frozenAt ?? state.now;
const isShown = (text) => !state.filter || text.toLowerCase().includes(state.filter);
const isActionShown = (action) => isShown(action.model) || isShown(action.share.label);

function rows() {
  const all = [...state.shares.values()];
  const used = all.filter((share) => isShown(share.label));
  return used.length ? used : all;
}

function visible() {
  const end = viewEnd(), begin = end - spanMs(), newest = state.frozenAt ?? state.now;
  return {
    begin, end,
    actions: state.actions.filter((action) => Math.max(action.end, action.planEnd) >= begin
      && Math.min(action.begin, action.planBegin) <= end && isActionShown(action)),
    refusals: state.refusals.filter((one) => one.at >= begin - 50 && one.at <= end && isShown(one.model)),
    // a frame counts whole: a view shorter than a frame shows the numbers of that frame
    frames: state.frames.filter((frame) => frame.at > begin && frame.at - 1000 * frame.seconds < end
      && frame.at <= newest),
  };
}

let drawing = 0, isStale = false;

function draw(withNumbers = true) {
  isStale ||= withNumbers;
  if (drawing) return;
  drawing = requestAnimationFrame(() => {
    drawing = 0;
    if (byId("content").hidden) return;
    const view = visible();
    drawTimeline(view);
    if (!isStale) return; // the pointer has moved
    isStale = false;
    drawSummary(view);
    drawTraffic(view);
    drawRefusals(view);
    drawDevices(view);
    drawTuner();
    byId("span").textContent = spanMs() < 1000 ? `${spanMs()} ms` : `${spanMs() / 1000} s`;
    byId("pause").textContent = state.frozenAt !== null ? "Resume" : "Pause";
    byId("pause").setAttribute("aria-pressed", String(state.frozenAt !== null));
    if (abort) setState(state.frozenAt === null ? "live" : "paused", state.frozenAt === null ? "live" : "paused");
    if (state.cluster) {
      const { scheduler, shares, pending } = state.cluster;
      const facts = [`scheduler ${scheduler}`, plural(shares.length, "share"), plural(pending, "open request")];
      byId("facts").textContent = facts.join(" · ");
    }
  });
}

// ---- Timeline

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const labelWidth = () => (canvas.clientWidth < 560 ? 74 : 132);

function resize() {
  const ratio = devicePixelRatio || 1, width = byId("frame").clientWidth;
  const height = AXIS + REFUSAL_LANE + ROW * Math.max(1, rows().length);
  if (canvas.width === Math.round(width * ratio) && canvas.height === Math.round(height * ratio)) return;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
}

function scale(view) {
  const left = labelWidth(), width = canvas.clientWidth - left;
  return (at) => left + ((at - view.begin) / (view.end - view.begin)) * width;
}

function drawTimeline(view) {
  resize();
  const x = scale(view), shown = rows(), left = labelWidth(), width = canvas.clientWidth;
  const names = ["text", "muted", "grid", "bad", "panel"];
  const colours = Object.fromEntries(names.map((name) => [name, style(`--${name}`)]));
  const models = Array.from({ length: COLOURS }, (_, number) => style(`--m${number}`));
  pen.clearRect(0, 0, width, canvas.clientHeight);
  pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  pen.textBaseline = "middle";
  drawGrid(view, x, colours, shown, left, width);
  pen.save();
  pen.beginPath();
  pen.rect(left, 0, width - left, canvas.clientHeight);
  pen.clip();
  const most = Math.max(1, ...view.refusals.map((one) => one.count));
  pen.fillStyle = colours.bad;
  for (const refusal of view.refusals) {
    const height = 3 + (REFUSAL_LANE - 7) * Math.sqrt(refusal.count / most);
    const barX = x(refusal.at);
    pen.fillRect(barX, AXIS + REFUSAL_LANE - 2 - height, Math.max(2, x(refusal.at + 50) - barX - 1), height);
  }
  const place = new Map(shown.map((share, number) => [share, AXIS + REFUSAL_LANE + ROW * number]));
  for (const action of view.actions) {
    const top = place.get(action.share);
    if (top !== undefined) drawAction(action, top, x, models[colourOf(action.model)], colours);
  }
  pen.restore();
}

function drawGrid(view, x, colours, shown, left, width) {
  const spans = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30];
  const target = spanMs() / Math.max(2, (width - left) / 110);
  const step = 1000 * (spans.find((seconds) => 1000 * seconds >= target) || 60);
  pen.fillStyle = colours.muted;
  pen.strokeStyle = colours.grid;
  pen.lineWidth = 1;
  const newest = state.frozenAt ?? state.now;
  for (let at = Math.ceil((view.begin - newest) / step) * step; at <= view.end - newest + 1e-6; at += step) {
    const place = Math.round(x(newest + at)) + 0.5;
    pen.beginPath();
    pen.moveTo(place, AXIS);
    pen.lineTo(place, canvas.clientHeight);
    pen.stroke();
    const text = at > -step / 2 ? "now" : step < 1000 ? `−${Math.round(-at)} ms` : `−${Math.round(-at / 1000)} s`;
    const half = pen.measureText(text).width / 2;
    if (place - half > left) pen.fillText(text, Math.min(place - half, width - 2 * half - 2), AXIS / 2);
  }
  pen.fillText("refusals", 8, AXIS + REFUSAL_LANE / 2);
  shown.forEach((share, number) => {
    const top = AXIS + REFUSAL_LANE + ROW * number;
    pen.strokeStyle = colours.grid;
    pen.beginPath();
    pen.moveTo(0, top + 0.5);
    pen.lineTo(width, top + 0.5);
    pen.stroke();
    const isChosen = number === state.row && document.activeElement === canvas;
    pen.fillStyle = isChosen ? colours.text : colours.muted;
    pen.font = `${isChosen ? 650 : 400} 12px system-ui, 'DejaVu Sans', sans-serif`;
    pen.fillText(share.label.replace("worker/", labelWidth() < 100 ? "" : "worker/"), 8, top + ROW / 2, left - 14);
    pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  });
}

function drawAction(action, top, x, colour, colours) {
  const isLoad = action.kind === "load", bottom = top + ROW - 4;
  const [planTop, planHeight] = isLoad ? [bottom - 7, 2] : [top + 3, 6];
  const [barTop, barHeight] = isLoad ? [bottom - 5, 5] : [top + 10, 17];
  const planX = x(action.planBegin), planWidth = Math.max(1, x(action.planEnd) - planX);
  pen.strokeStyle = colours.muted;
  pen.lineWidth = 1;
  if (planWidth < 3 || isLoad) {
    pen.fillStyle = colours.muted;
    pen.fillRect(planX, planTop + planHeight / 2 - 1, planWidth, 2);
  } else {
    pen.strokeRect(planX + 0.5, planTop + 0.5, planWidth - 1, planHeight - 1);
  }
  const barX = x(action.begin), barWidth = Math.max(1.5, x(action.end) - barX);
  pen.fillStyle = colour;
  if (isLoad) {
    for (let stripe = 0; stripe < barWidth; stripe += 6) {
      pen.fillRect(barX + stripe, barTop, Math.min(3, barWidth - stripe), barHeight);
    }
  } else {
    pen.fillRect(barX, barTop, barWidth, barHeight);
  }
  if (action.status || action.late) {
    pen.fillStyle = colours.bad;
    pen.fillRect(barX, barTop + barHeight, barWidth, 3);
    pen.fillRect(barX + barWidth - 2, barTop - 2, 2, barHeight + 5);
  }
  if (action === state.selected) {
    pen.strokeStyle = colours.text;
    pen.lineWidth = 2;
    pen.strokeRect(barX - 1.5, barTop - 1.5, barWidth + 3, barHeight + 3);
  }
  if (!isLoad && barWidth > 46) {
    const text = `${action.model.split("/")[0]} ×${action.requests}`;
    if (pen.measureText(text).width < barWidth - 8) {
      pen.fillStyle = colours.panel;
      pen.fillText(text, barX + 4, barTop + barHeight / 2 + 0.5);
    }
  }
}

const milliseconds = (value) => `${value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)} ms`;

function describe(action) {
  const took = action.end - action.begin, planned = action.planEnd - action.planBegin;
  const difference = action.end - action.planEnd;
  const late = action.late ? `, past the deadline of ${action.late}` : "";
  const failed = action.status ? `, ${state.statuses[action.status] || action.status}` : "";
  const batch = `${action.model}, ${plural(action.requests, "request")}, batch ${action.size}`;
  const what = action.kind === "load" ? `LOAD ${action.model}` : batch;
  return `${action.share.label}: ${what}: took ${milliseconds(took)}, predicted ${milliseconds(planned)}, ended `
    + `${milliseconds(Math.abs(difference))} ${difference > 0 ? "later" : "earlier"} than planned${late}${failed}`;
}

function select(action) {
  state.selected = action;
  if (action) {
    const text = describe(action);
    if (byId("detail").textContent !== text) byId("detail").textContent = text;
  }
  draw(false);
}

function actionAt(clientX, clientY) {
  const box = canvas.getBoundingClientRect(), view = visible(), x = scale(view);
  const px = clientX - box.left, py = clientY - box.top;
  if (py >= AXIS && py < AXIS + REFUSAL_LANE) return describeRefusalsAt(view, x, px);
  const share = rows()[Math.floor((py - AXIS - REFUSAL_LANE) / ROW)];
  const distance = (action) => Math.max(x(action.begin) - px, px - Math.max(x(action.end), x(action.begin) + 1.5), 0);
  const isLoad = (py - AXIS - REFUSAL_LANE) % ROW > 28 ? "load" : "infer";
  const near = view.actions.filter((action) => action.share === share && distance(action) <= 6);
  near.sort((one, other) => (one.kind !== isLoad) - (other.kind !== isLoad) || distance(one) - distance(other));
  return near[0] || null;
}

function describeRefusalsAt(view, x, px) {
  const near = view.refusals.filter((one) => Math.abs(x(one.at + 25) - px) <= Math.max(6, x(50) - x(0)));
  if (near.length) {
    byId("detail").textContent = near.slice(0, 3)
      .map((one) => `${one.count} refused: ${one.model}, ${one.reason.replaceAll("_", " ")}`
        + (one.missing > 0 ? `, up to ${milliseconds(one.missing)} too late` : "")).join("; ");
  }
  return null;
}

// ---- Moving and zooming

function zoom(by, at = viewEnd()) {
  const before = spanMs(), end = viewEnd();
  state.span = Math.min(SPANS.length - 1, Math.max(0, state.span + by));
  if (state.end !== null || at !== end) moveTo(at + (end - at) * (spanMs() / before));
  draw();
}

function moveTo(end) {
  const newest = state.frozenAt ?? state.now;
  state.end = end >= newest ? null : Math.max(end, newest - KEEP_MS + spanMs() * 0.1);
  if (state.end !== null && state.frozenAt === null) state.frozenAt = state.now;
  draw();
}

function pause(paused = state.frozenAt === null) {
  state.frozenAt = paused ? state.now : null;
  if (!paused) state.end = null;
  draw();
}

function selectNext(step) {
  const share = rows()[state.row];
  const actions = visible().actions.filter((action) => action.share === share);
  if (!actions.length) return;
  if (state.frozenAt === null) pause(true);
  const place = actions.indexOf(state.selected);
  const last = actions.length - 1, next = place >= 0 ? place + step : step > 0 ? 0 : last;
  select(actions[Math.min(last, Math.max(0, next))]);
}

const KEYS = {
  p: () => pause(), "+": () => zoom(-1), "=": () => zoom(-1), "-": () => zoom(1),
  ArrowLeft: () => moveTo(viewEnd() - spanMs() / 5), ArrowRight: () => moveTo(viewEnd() + spanMs() / 5),
  ArrowUp: () => moveRow(-1), ArrowDown: () => moveRow(1), "[": () => selectNext(-1), "]": () => selectNext(1),
  End: () => pause(false), Escape: () => select(null), "/": () => byId("filter").focus(),
};

function moveRow(step) {
  state.row = Math.min(rows().length - 1, Math.max(0, state.row + step));
  const top = AXIS + REFUSAL_LANE + ROW * state.row, frame = byId("frame");
  frame.scrollTop = Math.min(Math.max(frame.scrollTop, top + ROW - frame.clientHeight), top);
  draw();
}

addEventListener("keydown", (event) => {
  const isField = event.target.matches("input, textarea, select");
  const isButton = event.target.matches("button") && [" ", "Enter"].includes(event.key);
  if (isField && event.key === "Escape") event.target.blur();
  if (isField || isButton || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  if (event.key.startsWith("Arrow") && document.activeElement !== canvas) return;
  event.preventDefault();
  KEYS[event.key]();
});

const pointers = new Map();
let drag = null;

canvas.addEventListener("pointerdown", (event) => {
  pointers.set(event.pointerId, event);
  drag = { x: event.clientX, end: viewEnd(), moved: false, spread: spread(), span: state.span };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (!pointers.has(event.pointerId)) return select(actionAt(event.clientX, event.clientY) || state.selected);
  pointers.set(event.pointerId, event);
  if (pointers.size === 2 && drag.spread) {
    const steps = Math.round(Math.log2(drag.spread / spread()) * 1.5);
    if (drag.span + steps !== state.span) zoom(drag.span + steps - state.span);
  } else if (drag.moved || Math.abs(event.clientX - drag.x) > 4) {
    drag.moved = true;
    moveTo(drag.end - ((event.clientX - drag.x) / (canvas.clientWidth - labelWidth())) * spanMs());
  }
});
for (const name of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(name, (event) => {
    pointers.delete(event.pointerId);
    if (name === "pointerup" && drag && !drag.moved) select(actionAt(event.clientX, event.clientY));
  });
}
canvas.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX)) return; // the page scrolls
  event.preventDefault();
  const view = visible(), left = canvas.getBoundingClientRect().left + labelWidth();
  const part = (event.clientX - left) / (canvas.clientWidth - labelWidth());
  if (event.ctrlKey) zoom(Math.sign(event.deltaY), view.begin + Math.max(0, part) * (view.end - view.begin));
  else moveTo(view.end + ((event.deltaX || event.deltaY) / canvas.clientWidth) * spanMs());
}, { passive: false });

function spread() {
  if (pointers.size !== 2) return 0;
  const [one, other] = [...pointers.values()];
  return Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
}

// ---- Numbers

function sumTraffic(frames) {
  const sums = new Map();
  for (const frame of frames) {
    for (const row of frame.traffic) {
      if (!isShown(row.name)) continue;
      const id = `${row.kind} ${row.name}`;
      if (!sums.has(id)) sums.set(id, { kind: row.kind, name: row.name, inTime: 0, failed: {}, latency: [] });
      const sum = sums.get(id);
      sum.inTime += row.in_time;
      addCounts(sum.failed, row.failed);
      for (const [bucket, count] of row.latency) sum.latency[bucket] = (sum.latency[bucket] || 0) + count;
    }
  }
  for (const sum of sums.values()) Object.assign(sum, rates(sum));
  return [...sums.values()].sort((one, other) => other.due - one.due || (one.name < other.name ? -1 : 1));
}

function addCounts(sums, counts) {
  for (const [name, count] of Object.entries(counts)) sums[name] = (sums[name] || 0) + count;
}

function rates({ inTime, failed }) {
  const missed = Object.entries(failed).filter(([status]) => !NOT_SERVERS_FAULT.includes(status));
  const due = inTime + missed.reduce((sum, [, count]) => sum + count, 0);
  return { due, attainment: due ? inTime / due : null };
}

function quantile(latency, part) {
  const total = latency.reduce((sum, count) => sum + (count || 0), 0);
  let seen = 0;
  for (let bucket = 0; bucket < latency.length; bucket += 1) {
    const count = latency[bucket] || 0;
    if (count && seen + count >= part * total) {
      const low = bucket ? state.bounds[bucket - 1] : 0, high = state.bounds[bucket] ?? low;
      return low + (high - low) * ((part * total - seen) / count);
    }
    seen += count;
  }
  return null;
}

const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const inexact = (part) => `${Math.min(99.99, 100 * part).toFixed(part > 0.99 ? 2 : 1)}%`; // 100% is said of all only
const percent = (part) => (part === null ? "–" : part === 1 ? "100%" : inexact(part));
const grade = (part) => (part === null ? "" : part >= 0.99 ? "good" : part >= 0.95 ? "warn" : "bad");
const perSecond = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1));
const rate = (count, seconds) => (seconds ? perSecond(count / seconds) : "–");
const latencyText = (value) => (value === null ? "–" : milliseconds(value));

function element(tag, text = "", className = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  if (className) node.className = className;
  return node;
}

function fillTable(id, caption, columns, lines, empty) {
  const table = byId(id), head = element("thead"), body = element("tbody"), line = element("tr");
  for (const [title, className] of columns) {
    const cell = element("th", title, className);
    cell.scope = "col";
    line.append(cell);
  }
  head.append(line);
  for (const values of lines) {
    const row = element("tr");
    values.forEach((value, place) => {
      const cell = value instanceof Node ? value : element("td", value);
      cell.className = `${columns[place][1] || ""} ${cell.className}`.trim();
      row.append(cell);
    });
    body.append(row);
  }
  if (!lines.length) {
    const cell = element("td", empty, "left empty");
    cell.colSpan = columns.length;
    body.append(element("tr"));
    body.firstChild.append(cell);
  }
  table.setAttribute("aria-label", caption);
  table.replaceChildren(...(lines.length ? [head] : []), body);
}

const secondsOf = (frames) => frames.reduce((sum, frame) => sum + frame.seconds, 0);

function drawSummary(view) {
  const seconds = secondsOf(view.frames);
  const sums = sumTraffic(view.frames);
  const total = { inTime: 0, failed: {}, latency: [] };
  for (const sum of sums) {
    total.inTime += sum.inTime;
    addCounts(total.failed, sum.failed);
    sum.latency.forEach((count, bucket) => { total.latency[bucket] = (total.latency[bucket] || 0) + count; });
  }
  const { due, attainment } = rates(total);
  const busy = busyShares(view.frames, seconds);
  const busiest = [...busy.values()].sort((one, other) => other - one)[0];
  const facts = [
    ["answered in time", percent(attainment), grade(attainment)], ["goodput", rate(total.inTime, seconds), "", "/s"],
    ["requests", rate(due, seconds), "", "/s"], ["median latency", latencyText(quantile(total.latency, 0.5))],
    ["99th percentile", latencyText(quantile(total.latency, 0.99))],
    ["refused", rate(total.failed.REFUSED || 0, seconds), total.failed.REFUSED ? "warn" : "", "/s"],
    ["late", rate(total.failed.LATE || 0, seconds), total.failed.LATE ? "bad" : "", "/s"],
    ["busiest share", busiest === undefined ? "–" : percent(Math.min(1, busiest))],
  ];
  byId("summary").replaceChildren(...facts.map(([name, value, className, unit]) => {
    const group = element("div"), number = element("dd", value, className);
    if (unit) number.append(element("small", unit));
    group.append(element("dt", name), number);
    return group;
  }));
  const missing = view.frames.reduce((sum, frame) => sum + (frame.activity ? frame.activity.missing : 0), 0);
  byId("sampled").textContent = missing ? `${plural(missing, "further action")} counted but not drawn` : "";
}

function busyShares(frames, seconds) {
  const busy = new Map();
  for (const frame of frames) {
    for (const one of frame.activity ? frame.activity.busy : []) {
      busy.set(one.share, (busy.get(one.share) || 0) + one.ms / 1000 / seconds);
    }
  }
  return busy;
}

function nameCell(name, colour) {
  const cell = element("td");
  if (colour !== undefined) {
    const chip = element("span", "", "chip");
    chip.style.background = `var(--m${colour})`;
    cell.append(chip);
  }
  cell.append(name);
  return cell;
}

function drawTraffic(view) {
  const seconds = secondsOf(view.frames);
  const columns = [["name", "left"], ["kind", "left wide"], ["requests/s"], ["goodput/s", "wide"], ["in time"],
    ["median", "wide"], ["P99"], ["refused"], ["late", "wide"], ["failed", "wide"]];
  const lines = sumTraffic(view.frames).slice(0, 100).map((sum) => {
    const { REFUSED = 0, LATE = 0 } = sum.failed;
    const others = Object.entries(sum.failed).filter(([status]) => !["REFUSED", "LATE"].includes(status));
    const failures = others.map(([status, count]) => `${count} ${status}`).join(", ");
    return [
      nameCell(sum.name, sum.kind === "model" ? colourOf(sum.name) : undefined), element("td", sum.kind, "kind"),
      rate(sum.due, seconds), rate(sum.inTime, seconds), element("td", percent(sum.attainment), grade(sum.attainment)),
      latencyText(quantile(sum.latency, 0.5)), latencyText(quantile(sum.latency, 0.99)),
      element("td", REFUSED.toLocaleString("en"), REFUSED ? "warn" : ""),
      element("td", LATE.toLocaleString("en"), LATE ? "bad" : ""),
      element("td", failures || "0", failures ? "bad" : ""),
    ];
  });
  const caption = "Traffic of models, applications and pipelines in the visible time";
  fillTable("traffic", caption, columns, lines, "No requests in the visible time.");
}

function drawRefusals(view) {
  const groups = new Map();
  for (const one of view.refusals) {
    const id = `${one.model} ${one.reason}`;
    const group = groups.get(id) || { ...one, count: 0, missing: 0 };
    group.count += one.count;
    group.missing = Math.max(group.missing, one.missing);
    groups.set(id, group);
  }
  const lines = [...groups.values()].sort((one, other) => other.count - one.count).slice(0, 30).map((group) => [
    nameCell(group.model, colourOf(group.model)), element("td", group.reason.replaceAll("_", " ")),
    group.count.toLocaleString("en"), group.missing > 0 ? milliseconds(group.missing) : "–",
  ]);
  const columns = [["model", "left"], ["reason", "left"], ["requests"], ["too early by up to"]];
  fillTable("refusals", "Refusals in the visible time", columns, lines, "No refusals in the visible time.");
}

function drawDevices(view) {
  if (!state.cluster) return;
  const busy = busyShares(view.frames, secondsOf(view.frames)), devices = new Map();
  for (const share of state.cluster.shares) {
    if (!devices.has(share.deviceId)) devices.set(share.deviceId, []);
    devices.get(share.deviceId).push(share);
  }
  const cards = element("div", "", "cards");
  for (const [id, shares] of [...devices].slice(0, 60)) {
    const card = element("div", "", "card"), isOwn = shares.length === 1;
    const name = isOwn ? shares[0].worker : id.replace(/^[0-9a-f-]{36}\//, ""); // without the boot id of the host
    const title = element("h3", name.split("#")[0]);
    title.append(element("span", shares[0].type));
    card.append(title);
    if (shares.length > 1 || shares[0].percent < 100) card.append(shareBar(shares));
    for (const share of shares) card.append(...describeShare({ ...share, isOnly: isOwn }, busy));
    cards.append(card);
  }
  if (devices.size > 60) cards.append(element("p", `and ${devices.size - 60} more`, "empty"));
  byId("devices").replaceChildren(devices.size ? cards : element("p", "No worker is connected.", "empty"));
}

function shareBar(shares) {
  const bar = element("div", "", "bars");
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", shares.map((share) => `${share.worker.split("#")[0]} ${share.percent}%`).join(", "));
  shares.forEach((share, number) => {
    const part = element("i");
    part.style.width = `${share.percent}%`;
    part.style.background = `var(--m${number % COLOURS})`;
    bar.append(part);
  });
  return bar;
}

function describeShare(share, busy) {
  const { label } = shareOf(share.worker, share.share), used = busy.get(state.shares.get(label)) || 0;
  const name = share.isOnly ? "" : `${label}: `;
  const text = element("p", `${name}${share.percent === 100 ? "whole device" : `${+share.percent.toFixed(1)}%`}, `
    + `${percent(Math.min(1, used))} busy, ${+share.pagesFree.toFixed(1)} of ${share.pagesTotal} pages free`);
  const list = element("ul", "", "models"), kept = new Set(share.kept);
  const models = share.resident.filter(isShown);
  for (const model of models.slice(0, 24)) {
    const item = element("li"), chip = element("span", "", "chip");
    chip.style.background = `var(--m${colourOf(model)})`;
    item.append(chip, model, kept.has(model) ? " (planned)" : "");
    list.append(item);
  }
  if (models.length > 24) list.append(element("li", `and ${models.length - 24} more`));
  if (!models.length) list.append(element("li", state.filter ? "no resident model matches" : "no resident models"));
  return [text, list];
}

// A stage on shares of devices: its shares, and the 99th percentile of the last second beside its SLO.
function describeStage(stage) {
  const shadow = (share) => (share.shadow_percent ? `, shadow ${share.shadow_percent}%` : "");
  const shares = stage.shares.map((share) => `${share.device} ${share.percent}%${shadow(share)}`).join("; ");
  const p99 = stage.p99_ns === null ? "–" : milliseconds(stage.p99_ns / 1e6);
  return `${stage.stage} ${shares}; P99 ${p99} of ${milliseconds(stage.slo_ns / 1e6)}; ${stage.state}`;
}

function drawTuner() {
  const tuner = state.tuner;
  if (tuner === undefined) return;
  const parts = [];
  const line = (text, className = "") => parts.push(element("p", text, className));
  const { scheduler, worstServed } = state.cluster;
  line(`Scheduler ${scheduler}`);
  if (worstServed) line(`Worst served: ${worstServed}`, "warn");
  if (!tuner) {
    line("No tuner is connected.", "empty");
    return byId("tuner").replaceChildren(...parts);
  }
  if (tuner.blind) line(`Blind: ${tuner.blind}. Nothing is scaled.`, "warn");
  if (tuner.scaler_error) line(`Scaler ${tuner.scaler}: ${tuner.scaler_error}`, "bad");
  for (const plan of tuner.plans) {
    const planned = plan.planned_replicas;
    const stages = Object.entries(plan.replicas).map(([stage, now]) => `${stage} ${now} (planned ${planned[stage]})`);
    line(`Plan ${plan.name}: ${stages.concat(plan.stages.map(describeStage)).join(", ")}`);
  }
  if (!tuner.plans.length) line("No plan is applied.", "empty");
  if (tuner.journal.length) {
    const scroll = element("div", "", "scroll"), table = element("table");
    table.id = "journal";
    scroll.append(table);
    parts.push(scroll);
    byId("tuner").replaceChildren(...parts);
    const columns = [["ago", "left"], ["decision", "left"], ["plan", "left"], ["reason", "left"]];
    fillTable("journal", "Decisions of the tuner, newest first", columns, tuner.journal.map((entry) => [
      `${Math.round(entry.age_ns / 1e9)} s`, entry.event + (entry.dry_run ? " (dry run)" : ""), entry.subject || "–",
      element("td", entry.text, "text"),
    ]), "");
    return;
  }
  byId("tuner").replaceChildren(...parts);
}

// ---- Export

const LANES = ["EXEC", "EXEC predicted", "LOAD", "LOAD predicted"];

function traceEvents() {
  const view = visible(), processes = new Map(), events = [];
  const meta = (name, pid, tid, value) => events.push({ ph: "M", name, pid, tid, args: { name: value } });
  const time = (at) => Math.round((at - view.begin) * 1e6) / 1e3; // microseconds
  for (const action of view.actions) {
    if (!processes.has(action.share)) {
      const pid = processes.size + 1;
      processes.set(action.share, pid);
      meta("process_name", pid, 0, action.share.label);
      LANES.forEach((name, number) => meta("thread_name", pid, number + 1, name));
    }
    const tid = action.kind === "load" ? 3 : 1;
    const name = action.model.split("/")[0] + (tid === 3 ? "" : ` x${action.requests}`);
    const args = {
      model: action.model, status: state.statuses[action.status] || action.status, requests: action.requests,
      batch_size: action.size, late_requests: action.late,
      predicted_ms: action.planEnd - action.planBegin, actual_ms: action.end - action.begin,
      late_ms: action.end - action.planEnd,
    };
    const event = { ph: "X", cat: action.kind, pid: processes.get(action.share), name, args };
    events.push({ ...event, tid, ts: time(action.begin), dur: (action.end - action.begin) * 1e3 });
    events.push({ ...event, tid: tid + 1, ts: time(action.planBegin), dur: (action.planEnd - action.planBegin) * 1e3 });
  }
  meta("process_name", 0, 0, "refusals");
  for (const one of view.refusals) {
    const args = { count: one.count, missing_ms: one.missing }, name = `${one.model}: ${one.reason}`;
    events.push({ ph: "i", s: "p", pid: 0, tid: 0, cat: "refusal", name, ts: time(one.at), args });
  }
  return { traceEvents: events, displayTimeUnit: "ms" };
}

function exportTrace() {
  const url = URL.createObjectURL(new Blob([JSON.stringify(traceEvents())], { type: "application/json" }));
  const link = element("a");
  Object.assign(link, { href: url, download: "horologe-trace.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// ---- Controls

byId("pause").addEventListener("click", () => pause());
byId("zoom-in").addEventListener("click", () => zoom(-1));
byId("zoom-out").addEventListener("click", () => zoom(1));
byId("export").addEventListener("click", exportTrace);
byId("filter").addEventListener("input", (event) => {
  state.filter = event.target.value.trim().toLowerCase();
  state.row = 0;
  draw();
});
byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = byId("key").value.trim();
  connect();
});
byId("sign-out").addEventListener("click", () => {
  disconnect();
  state.key = "";
  askForKey();
});
for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => draw(false));
new ResizeObserver(() => draw(false)).observe(byId("frame"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(false));
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(disconnect, HIDDEN_MS);
  else if (byId("sign-in").hidden) connect();
});

connect();
