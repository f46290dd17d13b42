"use strict";
// Keeps the report of a running search up to date. Unchanged figures are not redrawn; scroll position, sort order, filter,
// open logs and focus are restored.
(() => {
  const line = document.getElementById("line");
  const here = location.pathname.replace(/\/$/, "");
  const SILENT_MS = 20000, RETRY_MS = 3000;
  let source = null, wanted = 0, shown = 0, isFetching = false, isOver = false, silence = 0;

  const say = (state, text) => {
    line.dataset.state = state;
    if (line.textContent !== text) line.textContent = text;
  };

  const lost = (text) => say("lost", text || "Connection to the service lost; retrying. Showing the last state received.");

  const follow = () => {
    source?.close();
    if (document.hidden) return;
    source = new EventSource(`${here}/events`);
    source.addEventListener("report", (event) => {
      const status = JSON.parse(event.data);
      wanted = status.seq;
      isOver = status.is_ended;
      onStatus(status);
      if (isOver) source.close();
      renew();
    });
    source.addEventListener("alive", (event) => onStatus(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      lost();
      if (source.readyState === EventSource.CLOSED) showRefusal();
    });
    listen();
  };

  // A connection can die without an error event.
  const listen = () => {
    clearTimeout(silence);
    if (!isOver) silence = setTimeout(() => { lost(); follow(); }, SILENT_MS);
  };

  const onStatus = (status) => {
    listen();
    if (status.stopped !== null && !isOver) say("stopped", `No driver: ${status.stopped}`);
    else say(isOver ? "ended" : "live", isOver ? "The search has ended" : "Live");
  };

  // After an answer that is not an event stream the browser gives up without the status.
  const showRefusal = async () => {
    const code = await fetch(`${here}/report`).then((answer) => answer.status, () => 0);
    if (code === 401) lost("Sign-in expired: parlay serve --page prints a new address.");
    else if (code === 404) lost("The service does not have this search.");
    setTimeout(follow, RETRY_MS);
  };

  // One update at a time, and none while the page is hidden or text is selected.
  const renew = async () => {
    if (isFetching || shown === wanted || document.hidden || !getSelection().isCollapsed) return;
    isFetching = true;
    const seq = wanted;
    try {
      const answer = await fetch(`${here}/report`);
      if (!answer.ok) throw new Error(answer.statusText);
      replaceContent(new DOMParser().parseFromString(await answer.text(), "text/html"), Number(answer.headers.get("age")));
      shown = seq;
    } catch {
      setTimeout(renew, RETRY_MS);
    }
    isFetching = false;
    if (shown !== wanted && shown === seq) renew();
  };
  document.addEventListener("selectionchange", renew);

  // A browser opens at most six connections to a server, so hidden pages close theirs.
  document.addEventListener("visibilitychange", () => {
    if (isOver) return renew();
    if (!document.hidden) return follow();
    source.close();
    clearTimeout(silence);
  });

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

  follow();
})();
