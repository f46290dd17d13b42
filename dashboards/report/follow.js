"use strict";
// Reads this page anew while it is visible, and stays at the end of a log where its reader is there.
(() => {
  const line = document.getElementById("line");
  const PAUSE_MS = 3000, END_PX = 40;

  const say = (state, text) => {
    line.dataset.state = state;
    if (line.textContent !== text) line.textContent = text;
  };
  const log = () => document.getElementById("log");
  const isAtEnd = (pre) => pre.scrollHeight - pre.scrollTop - pre.clientHeight < END_PX;
  const toEnd = (pre) => { pre.scrollTop = pre.scrollHeight; };
  const isOver = () => document.querySelector("main").hasAttribute("data-ended");

  const replaceContent = (fresh) => {
    const before = document.querySelector("main");
    if (fresh.innerHTML === before.innerHTML && isOver() === fresh.hasAttribute("data-ended")) return;
    const old = log();
    const view = { follows: !old || isAtEnd(old), top: old?.scrollTop ?? 0, hasFocus: old && document.activeElement === old };
    const { scrollLeft = 0, scrollTop = 0 } = before.querySelector(".scroll") ?? {};
    const href = document.activeElement?.getAttribute("href");
    before.replaceWith(document.adoptNode(fresh));
    fresh.querySelector(".scroll")?.scrollTo(scrollLeft, scrollTop);
    const pre = log();
    if (pre && view.follows) toEnd(pre);
    else if (pre) pre.scrollTop = view.top;
    if (view.hasFocus) pre?.focus({ preventScroll: true });
    else if (href) fresh.querySelector(`a[href="${href}"]`)?.focus({ preventScroll: true });
  };

  const renew = async () => {
    if (document.hidden || isOver() || !getSelection().isCollapsed) return;
    try {
      const answer = await fetch(location.href);
      if (answer.status === 401) throw new Error("Sign-in expired: parlay serve --page prints a new address.");
      if (!answer.ok) throw new Error("The service cannot read this at the moment.");
      replaceContent(new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main"));
      say(isOver() ? "ended" : "live", isOver() ? "The trial has ended" : "Live");
    } catch (error) {
      say("lost", error instanceof TypeError ? "Connection to the service lost; retrying." : error.message);
    }
  };

  if (log()) toEnd(log());
  say(isOver() ? "ended" : "live", isOver() ? "The trial has ended" : "Live");
  document.addEventListener("visibilitychange", renew);
  setInterval(renew, PAUSE_MS);
})();
