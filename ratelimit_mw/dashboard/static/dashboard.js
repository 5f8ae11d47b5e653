// Draws the curves, and updates the page while it is shown. The page itself works without this script.
"use strict";

(() => {
  const EVERY_MS = 5000;
  const NEWS_EVERY_MS = 30000;
  const UPPER = ["count", "allowed"];
  const charts = new Map();  // by element
  const number = new Intl.NumberFormat("en-US");

  // ---- Curves

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  function short(value) {
    for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (value >= size) return `${+(value / size).toPrecision(3)}${unit}`;
    }
    return `${value}`;
  }

  function columns(data, lane) {
    const size = lane[0].counts.length;
    const times = Array.from({ length: size + 1 }, (_, i) => data.start + i * data.step);
    return [times, ...lane.map(({ counts }) => [...counts, counts[size - 1]])];
  }

  function series({ line, label }) {
    const stroke = color(line);
    return {
      label,
      stroke,
      width: line === "rejected" ? 1.5 : 1.2,
      dash: line === "shadow" ? [5, 4] : undefined,
      fill: line === "shadow" ? undefined : `${stroke}33`,
      paths: uPlot.paths.stepped({ align: 1 }),
      points: { show: false },
    };
  }

  function options(element, data, lane, isLast, height) {
    const axis = { stroke: color("soft"), grid: { stroke: color("line"), width: 1 }, font: "11px system-ui, sans-serif" };
    const ticks = { show: false };
    return {
      width: element.clientWidth,
      height,
      padding: [6, 4, isLast ? 0 : 8, 0],
      legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: { y: { range: (_plot, _low, high) => [0, Math.max(1, high) * 1.08] } },
      axes: [
        { ...axis, ticks, show: isLast, size: 24, space: 60, values: timeLabels },
        { ...axis, ticks, size: 44, space: 26, incrs: [1, 2, 5, 10, 20, 50, 1e2, 2e2, 5e2, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8, 1e9], values: (_plot, values) => values.map(short) },
      ],
      series: [{}, ...lane.map(series)],
      cursor: { sync: { key: "time" }, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      hooks: { setCursor: [(plot) => readOut(element, plot.cursor.idx)], setSelect: [(plot) => zoom(plot)] },
    };
  }

  const two = (value) => String(value).padStart(2, "0");

  function timeLabels(_plot, splits, _axis, _space, step) {
    return splits.map((seconds) => {
      const at = new Date(seconds * 1000);
      const day = `${at.getUTCFullYear()}-${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}`;
      if (step >= 28 * 86400) return day.slice(0, 7);
      return step >= 86400 || seconds % 86400 === 0 ? day.slice(5) : `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
    });
  }

  function readOut(element, index) {
    const output = element.parentElement.querySelector(".readout");
    output.dataset.peaks ??= output.textContent;
    const data = charts.get(element)?.data;
    const line = data?.lanes[0][0];
    if (index == null || !line || !(index < line.counts.length)) {
      output.textContent = output.dataset.peaks;
      return;
    }
    const at = new Date((data.start + index * data.step) * 1000).toISOString().slice(0, 16).replace("T", " ");
    const counts = data.lanes.flat().map(({ label, counts }) => `${number.format(counts[index])} ${label}`);
    output.textContent = `${at} UTC: ${counts.join(", ")}`;
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

  function draw(element) {
    const data = JSON.parse(element.dataset.curve);
    const lanes = data.lanes.length;
    const known = charts.get(element);
    if (known && sameLines(known.data, data)) {
      known.data = data;
      known.plots.forEach((plot, i) => plot.setData(columns(data, data.lanes[i])));
      return;
    }
    erase(element);
    const height = element.clientHeight;
    const heights = lanes === 1 ? [height] : [Math.round(height * 0.52), height - Math.round(height * 0.52)];
    const entry = { data, plots: [] };
    charts.set(element, entry);
    entry.plots = data.lanes.map((lane, i) => new uPlot(
      options(element, data, lane, i === lanes - 1, heights[i]), columns(data, lane), element));
    sizes.observe(element);
  }

  function erase(element) {
    charts.get(element)?.plots.forEach((plot) => plot.destroy());
    charts.delete(element);
    sizes.unobserve(element);
  }

  function sameLines(one, other) {
    const names = ({ lanes }) => JSON.stringify(lanes.map((lane) => lane.map(({ line }) => line)));
    return names(one) === names(other);
  }

  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      for (const plot of charts.get(target)?.plots ?? []) {
        if (target.clientWidth && plot.width !== target.clientWidth) plot.setSize({ width: target.clientWidth, height: plot.height });
      }
    }
  });

  function drawAll() {
    document.querySelectorAll("[data-curve]").forEach(draw);
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    [...charts.keys()].forEach(erase);
    drawAll();
  });

  // ---- Updates

  const pause = document.getElementById("pause");
  const news = document.getElementById("news");
  const failure = document.getElementById("failure");
  const focusable = "a[href], button, input, summary, [tabindex]";
  const sources = new Map();  // the HTML of each part, as the server has sent it
  let timer = 0;
  let isPaused = false;
  let newsAt = 0;
  let rejected = countRejected(document);

  function countRejected(page) {
    return [...page.querySelectorAll("[data-rejected]")].reduce((sum, each) => sum + Number(each.dataset.rejected), 0);
  }

  // Replaces the content of a part, and keeps its charts, its open details, its scroll positions and the focus.
  function replace(part, fresh) {
    const source = fresh.innerHTML;
    const selection = getSelection();
    const isSelected = !selection.isCollapsed && part.contains(selection.anchorNode);
    if (isSelected || sources.get(part.id) === source) return;
    const focused = [...part.querySelectorAll(focusable)].indexOf(document.activeElement);
    const scrolled = [...part.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    const plots = [...part.querySelectorAll("[data-curve]")];
    for (const { id } of part.querySelectorAll("details[open]")) fresh.querySelector(`#${id}`)?.setAttribute("open", "");
    for (const plot of fresh.querySelectorAll("[data-curve]")) {
      const old = plots.find(({ id }) => id === plot.id);
      if (!old) continue;
      for (const { name, value } of plot.attributes) old.setAttribute(name, value);
      plot.replaceWith(old);
    }
    part.replaceChildren(...fresh.childNodes);
    sources.set(part.id, source);
    for (const plot of plots) if (!plot.isConnected) erase(plot);
    part.querySelectorAll(".scroll").forEach((each, i) => scrolled[i] && each.scrollTo(...scrolled[i]));
    if (focused >= 0) part.querySelectorAll(focusable)[focused]?.focus({ preventScroll: true });
  }

  // A screen reader hears at most one message in a while. Returns whether this one was shown.
  function announce(text) {
    if (Date.now() - newsAt < NEWS_EVERY_MS) return false;
    newsAt = Date.now();
    news.textContent = text;
    return true;
  }

  function announceMore(count) {
    return count > 0 && announce(`${number.format(count)} more rejected requests`);
  }

  async function update() {
    try {
      const response = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!response.ok) throw new Error(`the server responded with the status ${response.status}`);
      show(new DOMParser().parseFromString(await response.text(), "text/html"));
      failure.hidden = true;
    } catch (error) {
      failure.hidden = false;
      announce(`The page cannot be updated: ${error.message}`);
    }
  }

  function show(page) {
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = page.getElementById(part.id);
      if (fresh) replace(part, fresh);
    }
    drawAll();
    const now = countRejected(page);
    if (now < rejected || announceMore(now - rejected)) rejected = now;
  }

  function schedule(wait) {
    clearTimeout(timer);
    if (isPaused || document.visibilityState !== "visible") return;
    timer = setTimeout(() => update().finally(() => schedule(EVERY_MS)), wait);
  }

  for (const part of document.querySelectorAll("[data-part]")) sources.set(part.id, part.innerHTML);
  drawAll();
  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.textContent = isPaused ? "Resume updates" : "Pause updates";
      schedule(0);
    });
    document.addEventListener("visibilitychange", () => schedule(0));
    schedule(EVERY_MS);
  }
})();
