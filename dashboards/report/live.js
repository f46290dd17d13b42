"use strict";
// Keeps the report of a running search up to date. Unchanged figures are not redrawn; scroll position, sort order, filter,
// open logs and focus are restored.
(() => {
  const here = location.pathname.replace(/\/$/, "");
  let shown = "0";

  // `age` are the seconds since the fresh content was true.
  const replaceContent = (fresh, age) => {
    const view = saveView();
    const parts = ["nav", "main", "footer"].map((name) => [document.querySelector(name), document.adoptNode(fresh.querySelector(name))]);
    const main = parts[1][1];
    const field = document.getElementById("filter");
    if (field) main.querySelector("#filter")?.replaceWith(field);
    for (const place of document.querySelectorAll(".plot")) {
      const next = place.drawn && main.querySelector(`.plot[data-figure="${place.dataset.figure}"]`);
      if (!next) {
        Plotly.purge(place);
        continue;
      }
      place.dataset.height = next.dataset.height;
      next.replaceWith(place);
    }
    for (const [before, after] of parts) before.replaceWith(after);
    document.getElementById("figures").textContent = fresh.getElementById("figures").textContent;
    document.title = fresh.title;
    for (const time of main.querySelectorAll("time[data-passed]")) time.began = Date.now() - 1000 * (Number(time.dataset.passed) + age);
    showTimes();
    report.show();
    restoreView(view);
  };

  const scroller = () => document.querySelector(".scroll");
  const detailsOf = (trial) => document.querySelector(`tr[data-trial="${CSS.escape(trial)}"] details`);
  const bodyOf = (layout) => document.querySelector(`tbody[data-layout="${CSS.escape(layout)}"]`);

  const saveView = () => {
    const parts = [...document.querySelectorAll("main section[id], main figure[id]")];
    const above = parts.filter((part) => part.getBoundingClientRect().top <= 0).pop();
    const sorted = document.querySelector("th[aria-sort]");
    return {
      at: above && { id: above.id, top: above.getBoundingClientRect().top },
      order: sorted && { name: sorted.textContent, up: sorted.getAttribute("aria-sort") === "ascending" },
      open: [...document.querySelectorAll("tr details[open]")].map((found) => found.closest("tr").dataset.trial),
      layouts: [...document.querySelectorAll(".opener[aria-expanded=true]")].map((found) => found.closest("tbody").dataset.layout),
      scrolled: scroller() && [scroller().scrollLeft, scroller().scrollTop],
      focus: finderOf(document.activeElement),
    };
  };

  const restoreView = (view) => {
    const heads = [...document.querySelectorAll("thead button")];
    const head = heads.find((button) => button.textContent === view.order?.name);
    if (head) report.sort(head, view.order.up);
    for (const details of view.open.map(detailsOf)) if (details) details.open = true;
    for (const body of view.layouts.map(bodyOf)) if (body) report.open(body, true);
    if (view.scrolled) scroller()?.scrollTo(...view.scrolled);
    view.focus?.()?.focus({ preventScroll: true });
    const above = view.at && document.getElementById(view.at.id);
    if (above) scrollBy({ top: above.getBoundingClientRect().top - view.at.top, behavior: "instant" });
  };

  // Returns a function that finds the same element in a new rendering.
  const finderOf = (element) => {
    if (!element || element === document.body) return null;
    if (element.id) return () => document.getElementById(element.id);
    if (element.matches(".scroll")) return scroller;
    if (element.matches("nav a")) return () => document.querySelector(`nav a[href="${element.getAttribute("href")}"]`);
    const body = element.closest("tbody[data-layout]");
    if (body && element.matches(".opener")) return () => bodyOf(body.dataset.layout)?.querySelector(".opener");
    const row = element.closest("tr[data-trial]");
    if (row && element.matches("summary")) return () => detailsOf(row.dataset.trial)?.querySelector("summary");
    if (row && element.matches("pre")) return () => detailsOf(row.dataset.trial)?.querySelector("pre");
    if (!element.matches("thead button")) return null;
    return () => [...document.querySelectorAll("thead button")].find((button) => button.textContent === element.textContent);
  };

  // Times of trials in flight go on between two reports, by this browser's clock alone.
  const showTimes = () => {
    for (const time of document.querySelectorAll("time[data-passed]")) {
      const seconds = Math.max(0, Math.floor((Date.now() - time.began) / 1000)), two = (part) => String(part).padStart(2, "0");
      const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
      time.textContent = `${hours ? `${hours}:${two(minutes)}` : minutes}:${two(seconds % 60)}`;
    }
  };
  setInterval(showTimes, 1000);

  follow(() => `${here}/report?after=${shown}`, async (answer) => {
    const { headers } = answer;
    if (answer.status !== 204) replaceContent(await parsed(answer), Number(headers.get("age")));
    shown = headers.get("parlay-event");
    if (headers.has("parlay-ended")) return ["ended", "The search has ended"];
    const stopped = headers.get("parlay-stopped");
    return stopped === null ? ["live", "Live"] : ["stopped", `No driver: ${decodeURIComponent(stopped)}`];
  });
})();
