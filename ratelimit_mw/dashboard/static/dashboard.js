// Draws the curves, and writes data.json into the page while it is shown. The page itself works without this script.
//
// An element with data-value has the path of a value, and data-form its form. One with data-if is there only while the
// value of that path is, one with data-unless only while none is. One with data-each has a row for each item of a list:
// its template, and data-row with the values of data-key, by which a row is found again. Paths in a row begin there.
"use strict";

(() => {
  const EVERY_MS = 5000;
  const DAY = 86400;
  const LANES = [["allowed"], ["rejected", "shadow"], ["limit", "in_flight"]];  // with scales of their own: the first are often higher
  const LABELS = { allowed: "allowed", rejected: "rejected", shadow: "would be rejected", limit: "limit", in_flight: "in flight" };
  const BOUND = "[data-value], [data-if], [data-unless], [data-each], [data-field], [data-name]";
  const number = new Intl.NumberFormat("en-US");
  const short = new Intl.NumberFormat("en-US", { notation: "compact" });
  const charts = new Map();  // by element

  // ---- Values

  const at = (row, path) => path.split(".").reduce((inner, name) => inner?.[name], row);
  const isThere = (value) => Array.isArray(value) ? value.length > 0 : Boolean(value);
  const visible = (text) => text.replace(/(?! )[\p{C}\p{Z}]/gu, (each) =>
    [...each].map((one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`).join(""));
  const cut = (text) => visible([...text].length > 300 ? `${[...text].slice(0, 300).join("")}…` : text);
  const forms = {
    text: (value) => cut(String(value)),
    number: (value) => number.format(value),
    percent: (value) => `${(value * 100).toFixed(1)}%`,
    time: (value) => `${value.slice(0, 10)} ${value.slice(11, 19)}`,
    clock: (value) => value.slice(11, 19),
    lines: (value) => value.map(cut).join("\n"),
  };

  // Writes the values of a row, or of the page, that have changed.
  function write(root, row) {
    const scope = root.closest("[data-row]");
    for (const each of [root, ...root.querySelectorAll(BOUND)]) {
      const { value, form, empty, each: list, field, name } = each.dataset;
      if (each.closest("[data-row]") !== scope) continue;
      if (value !== undefined) {
        const known = at(row, value) ?? "";
        const text = known === "" ? empty : forms[form](known);
        if (each.textContent !== text) each.textContent = text;
      }
      if (field !== undefined) each.value = at(row, field) ?? "";
      if (name !== undefined) each.search = linkTo(at(row, name));
      if ("if" in each.dataset) each.hidden = !isThere(at(row, each.dataset.if));
      if ("unless" in each.dataset) each.hidden = isThere(at(row, each.dataset.unless));
      if (list !== undefined) writeRows(each, at(row, list) ?? []);
    }
  }

  function linkTo(name) {
    const query = new URLSearchParams(location.search);
    query.set("name", name ?? "");
    return query;
  }

  // Neither moves nor removes the row that has the focus.
  function writeRows(list, rows) {
    const names = list.dataset.key.split(" ");
    const known = new Map([...list.children].filter(isRow).map((each) => [each.dataset.row, each]));
    const template = list.querySelector(":scope > template");
    let last = template;
    for (const row of rows) {
      const key = names.map((name) => visible(String(row[name] ?? ""))).join(" ");
      const element = known.get(key) ?? document.importNode(template.content.firstElementChild, true);  // links need its URL
      known.delete(key);
      element.dataset.row = key;
      write(element, row);
      element.curve = row;
      if (last.nextElementSibling !== element && !hasFocus(element)) last.after(element);
      last = element;
    }
    for (const element of known.values()) if (!hasFocus(element)) element.remove();
  }

  const isRow = (element) => "row" in element.dataset;
  const hasFocus = (element) => element.contains(document.activeElement);

  // ---- Curves

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // The time, or the month and day, and below it what changes less often: once, where it changes.
  function timeLabels(_plot, splits, _axis, _space, step) {
    let before = "";
    return splits.map((seconds) => {
      const moment = new Date(seconds * 1000).toISOString();
      const [above, below] = step < DAY ? [moment.slice(11, 16), moment.slice(5, 10)] : [moment.slice(5, 10), moment.slice(0, 4)];
      const isNew = below !== before;
      before = below;
      return isNew ? `${above}\n${below}` : above;
    });
  }

  function series(line) {
    const stroke = color(line);
    return {
      label: LABELS[line],
      stroke,
      width: line === "rejected" ? 1.5 : 1.2,
      dash: line === "shadow" ? [5, 4] : undefined,
      fill: ["shadow", "limit"].includes(line) ? undefined : `${stroke}33`,
      paths: uPlot.paths.stepped({ align: 1 }),
      points: { show: false },
    };
  }

  function options(element, lines, isLast, height) {
    const axis = { stroke: color("soft"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    return {
      width: element.clientWidth,
      height,
      padding: [6, 16, isLast ? 0 : 8, 0],
      legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: { y: { range: (_plot, _low, high) => [0, Math.max(1, high) * 1.08] } },
      axes: [
        { ...axis, show: isLast, size: 38, space: 66, values: timeLabels },
        { ...axis, size: 44, space: 20, incrs: [1, 2, 5].flatMap((each) => Array.from({ length: 10 }, (_, i) => each * 10 ** i)).sort((a, b) => a - b), values: (_plot, values) => values.map((value) => short.format(value)) },
      ],
      series: [{}, ...lines.map(series)],
      cursor: { sync: { key: "time" }, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      hooks: { setCursor: [(plot) => readOut(element, plot.cursor.idx)], setSelect: [zoom] },
    };
  }

  function readOut(element, index) {
    const [peaks, moment] = element.parentElement.querySelector(".readout").children;
    const { lines, times } = charts.get(element) ?? {};
    const isOver = index != null && times && index < times.length - 1;
    [peaks.hidden, moment.hidden] = [isOver, !isOver];
    if (!isOver) return;
    const counts = Object.entries(lines).map(([line, counts]) => `${number.format(counts[index])} ${LABELS[line]}`);
    moment.textContent = `${new Date(times[index] * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC: ${counts.join(", ")}`;
  }

  function zoom(plot) {
    if (plot.select.width < 8) return;
    const [start, end] = [plot.select.left, plot.select.left + plot.select.width]
      .map((left) => new Date(plot.posToVal(left, "x") * 1000).toISOString().slice(0, 16));
    const query = new URLSearchParams(location.search);
    query.delete("range");
    query.set("from", start);
    query.set("to", end);
    location.search = query;
  }

  function draw(element, lines, { start, step }) {
    const lanes = LANES.map((lane) => lane.filter((line) => line in lines)).filter((lane) => lane.length);
    const shape = String(lanes);
    if (charts.get(element)?.shape !== shape) erase(element);
    const chart = charts.get(element) ?? { shape, plots: [] };
    const size = Object.values(lines)[0].length;
    const first = Date.parse(start) / 1000;
    Object.assign(chart, { lines, start, step, times: Array.from({ length: size + 1 }, (_, i) => first + i * step) });
    charts.set(element, chart);
    const values = lanes.map((lane) => [chart.times, ...lane.map((line) => [...lines[line], lines[line][size - 1]])]);
    if (chart.plots.length) {
      chart.plots.forEach((plot, i) => plot.setData(values[i]));
      return;
    }
    const height = element.clientHeight;
    const upper = lanes.length === 1 ? height : Math.round((height - 38) / 2);
    chart.plots = lanes.map((lane, i) => new uPlot(options(element, lane, i === lanes.length - 1, i ? height - upper : upper), values[i], element));
  }

  function erase(element) {
    charts.get(element)?.plots.forEach((plot) => plot.destroy());
    charts.delete(element);
  }

  // ---- Updates

  const pause = document.getElementById("pause");
  const failure = document.getElementById("failure");
  let timer = 0;
  let isPaused = false;
  let latest = null;

  function show(data) {
    latest = data;
    write(document.body, data);
    for (const element of charts.keys()) if (!element.isConnected) erase(element);
    for (const card of document.querySelectorAll(".card")) if (card.curve?.lines) draw(card.querySelector(".plot"), card.curve.lines, { ...data.traffic, ...card.curve });
  }

  async function update() {
    try {
      const response = await fetch(`data.json${location.search}`);
      if (response.ok) show(await response.json());
      failure.hidden = response.ok;
    } catch {
      failure.hidden = false;
    }
  }

  function schedule(wait) {
    clearTimeout(timer);
    if (isPaused || !pause || document.visibilityState !== "visible") return;
    timer = setTimeout(() => update().finally(() => schedule(EVERY_MS)), wait);
  }

  function redraw() {
    [...charts.keys()].forEach(erase);
    if (latest) show(latest);
  }

  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  if (failure) update().finally(() => schedule(EVERY_MS));
  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.textContent = isPaused ? "Resume updates" : "Pause updates";
      schedule(0);
    });
    document.addEventListener("visibilitychange", () => schedule(0));
  }
})();
