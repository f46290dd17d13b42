"use strict";
const report = (() => {
  // The page's policy allows plotly.js, as it is unpacked, by its hash.
  const unpacked = (async () => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
    const script = document.createElement("script");
    script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script);
  })();
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // Width of a figure in print, in CSS pixels: it fits A4 and US Letter. All are drawn wider and scaled; two that are not
  // wide stand beside each other.
  const PRINTED_WIDTH = 690, HALF_WIDTH = 335, SCALED_WIDTH = 1000;
  let figures = {}, places = [], bodies = [], isPrinting = false;

  // A string that begins with @ names one of the page's colours; plotly needs its value.
  const coloured = (value, style) => {
    if (typeof value === "string") return value[0] === "@" ? style.getPropertyValue("--" + value.slice(1)).trim() : value;
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, coloured(item, style)]));
  };

  const themed = (layout, height, narrow) => {
    const axis = { gridcolor: "@grid", zerolinecolor: "@grid", linecolor: "@grid", automargin: true, tickfont: { color: "@muted" } };
    const axes = Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name));
    const base = {
      height, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 12.5, color: "@ink" },
      margin: { l: narrow ? 44 : 58, r: narrow ? 10 : 18, t: 26, b: 44 },
      hoverlabel: { bgcolor: "@paper", bordercolor: "@grid", font: { color: "@ink" } },
    };
    const whole = { ...base, ...layout };
    if ("legend" in layout) whole.showlegend = true;
    if (narrow && layout.legend) {
      whole.legend = { ...layout.legend, y: -0.3, yanchor: "top" };
      whole.height = height + 50;
    }
    if (narrow && layout.grid) {
      whole.grid = { ...layout.grid, rows: layout.grid.columns, columns: 1, ygap: 0.4 };
      whole.height = Math.round(height * 0.85 * layout.grid.columns);
    }
    if (layout.meta && narrow) Object.assign(whole, { autosize: false, width: layout.meta.least_width });
    for (const name of axes) {
      const title = { ...layout[name].title, font: { size: narrow ? 11 : 12.5, color: "@muted" } };
      whole[name] = { ...axis, ...layout[name], title };
    }
    return whole;
  };

  // A place stores the figure that is drawn in it, to recognise unchanged ones.
  const draw = (place) => {
    const figure = figures[place.dataset.figure];
    const narrow = !isPrinting && place.clientWidth < 480;
    const style = getComputedStyle(document.documentElement);
    const whole = themed(figure.layout, Number(place.dataset.height), narrow);
    const isWide = place.closest("figure").classList.contains("wide");
    const room = isWide ? PRINTED_WIDTH : HALF_WIDTH;
    const width = isWide ? Math.max(SCALED_WIDTH, figure.layout.meta?.least_width ?? 0) : PRINTED_WIDTH;
    if (isPrinting) Object.assign(whole, { autosize: false, width });
    place.style.zoom = "";
    place.drawn = JSON.stringify(figure);
    const drawing = Plotly.react(place, coloured(figure.data, style), coloured(whole, style), {
      responsive: true, displayModeBar: false,
    });
    if (isPrinting) place.style.zoom = room / width; // afterwards, since plotly measures its texts
    return drawing.then(() => { if (place.scrollWidth > place.clientWidth) place.tabIndex = 0; });
  };

  const drawAll = (all) => window.Plotly && all.forEach(draw);
  const alreadyDrawn = () => places.filter((place) => place.drawn);

  // Figures are drawn when they come near the viewport, so that a long page opens quickly, and the others one by one when
  // the browser is idle, so that a picture of the whole page has them.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !entry.target.drawn) draw(entry.target);
    }
  }, { rootMargin: "600px" });

  const idle = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
  const drawRest = () => {
    const place = places.find((other) => !other.drawn);
    if (place) draw(place).then(() => idle(drawRest));
  };

  dark.addEventListener("change", () => drawAll(alreadyDrawn()));
  const print = (isStarting) => {
    isPrinting = isStarting;
    document.documentElement.classList.toggle("printing", isPrinting);
    drawAll(places);
  };
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));

  const table = () => document.getElementById("table");

  const key = (body, column) => {
    const text = body.rows[0].cells[column].dataset.sort;
    return text === "" ? null : isNaN(text) ? text : Number(text);
  };

  const sort = (button, up) => {
    const column = Number(button.dataset.column);
    table().querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
    button.closest("th").setAttribute("aria-sort", up ? "ascending" : "descending");
    const keyed = bodies.map((body, place) => ({ body, place, key: key(body, column) }));
    keyed.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
      return (a.key < b.key ? -1 : a.key > b.key ? 1 : 0) * (up ? 1 : -1) || a.place - b.place;
    });
    table().append(...keyed.map(({ body }) => body));
  };

  // "tensor 8" is the word "tp8"; a word that is an axis's key and a number is compared as a whole, others anywhere.
  const wordsOf = (text) => {
    const keys = JSON.parse(table().dataset.keys);
    let rest = text.toLowerCase().replace(/\s+/g, " ").trim();
    for (const label of Object.keys(keys).sort((a, b) => b.length - a.length)) {
      const escaped = label.replace(/[^a-z0-9 ]/g, "\\$&");
      rest = rest.replace(new RegExp(`(^| )${escaped} (\\S+)`, "g"), (_, gap, value) => gap + keys[label] + ({ on: 1, off: 0 }[value] ?? value));
    }
    const whole = new Set(Object.values(keys));
    return rest.split(" ").filter(Boolean).map((word) => ({ word, isWhole: /\d$/.test(word) && whole.has(word.replace(/\d+$/, "")) }));
  };

  const filter = (text) => {
    const wanted = wordsOf(text);
    let count = 0;
    for (const body of bodies) {
      const words = body.dataset.words.toLowerCase().split(" ");
      const has = [body.textContent.toLowerCase(), ...words].join(" ");
      body.hidden = !wanted.every(({ word, isWhole }) => isWhole ? words.includes(word) : has.includes(word));
      count += body.hidden ? 0 : 1;
    }
    document.getElementById("shown").textContent = wanted.length ? `${count} of ${bodies.length} layouts` : "";
  };

  const open = (body, isOpen) => {
    body.querySelector(".opener").setAttribute("aria-expanded", isOpen);
    body.rows[1].hidden = !isOpen;
  };

  // A page opened as a file may not write to the clipboard: its text is selected then, to be copied by hand.
  const copy = async (button) => {
    const text = button.previousElementSibling, name = button.getAttribute("aria-label").replace("Copy ", "");
    const say = (word, words) => {
      button.textContent = word;
      document.getElementById("copied").textContent = words;
    };
    try {
      await navigator.clipboard.writeText(text.textContent);
      say("Copied", `Copied ${name}`);
    } catch {
      getSelection().selectAllChildren(text);
      say("Selected", `Selected ${name}, to be copied by hand`);
    }
    setTimeout(() => say("Copy", ""), 2000);
  };

  // Attaches figures, sorting and filter to the current document.
  const show = () => {
    figures = JSON.parse(document.getElementById("figures").textContent);
    places = [...document.querySelectorAll(".plot")];
    for (const place of places) place.style.minHeight = place.dataset.height + "px";
    unpacked.then(() => {
      for (const place of places) {
        if (!place.drawn) watcher.observe(place);
        else if (place.drawn !== JSON.stringify(figures[place.dataset.figure])) draw(place);
      }
      idle(drawRest);
    });
    for (const button of document.querySelectorAll(".copy")) {
      button.hidden = false;
      button.onclick = () => copy(button);
    }
    bodies = table() ? [...table().tBodies] : [];
    if (!table()) return;
    for (const button of table().querySelectorAll("thead button")) {
      const first = "down" in button.dataset ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      button.onclick = () => sort(button, (button.closest("th").getAttribute("aria-sort") === first ? other : first) === "ascending");
    }
    for (const body of bodies) {
      open(body, false);
      body.querySelector(".opener").onclick = () => open(body, body.rows[1].hidden);
    }
    const field = document.getElementById("filter");
    field.oninput = () => filter(field.value);
    if (field.value) filter(field.value);
  };

  return { show, sort, open };
})();
report.show();
