"use strict";
// Asks the service for this page anew while it is visible and nothing in it is selected. `show` replaces what has changed and
// returns a state ("live", "stopped", "ended") and its words, which the line in the head of the page tells.
const follow = (address, show) => {
  const PAUSE_MS = 2000;
  let isFetching = false, isOver = false;

  const say = (state, text) => {
    const line = document.getElementById("line");
    line.dataset.state = state;
    if (line.textContent !== text) line.textContent = text;
  };

  const renew = async () => {
    if (isFetching || isOver || document.hidden || !getSelection().isCollapsed) return;
    isFetching = true;
    try {
      const answer = await fetch(address());
      if (answer.status === 401) throw new Error("Sign-in expired: parlay serve --page prints a new address.");
      if (answer.status === 404) throw new Error("The service does not have this.");
      if (!answer.ok) throw new Error("The service cannot read this at the moment.");
      const [state, text] = await show(answer);
      isOver = state === "ended";
      say(state, text);
    } catch (error) {
      say("lost", error instanceof TypeError ? "Connection to the service lost; retrying. Showing the last state received." : error.message);
    }
    isFetching = false;
  };

  document.addEventListener("visibilitychange", renew);
  document.addEventListener("selectionchange", renew);
  setInterval(renew, PAUSE_MS);
  renew();
};

const parsed = async (answer) => new DOMParser().parseFromString(await answer.text(), "text/html");

// A list is read anew whole; a log stays at its end where its reader is there.
const followList = () => {
  const END_PX = 40;
  const log = () => document.getElementById("log");
  const toEnd = (pre) => { pre.scrollTop = pre.scrollHeight; };

  const replaceContent = (fresh) => {
    const before = document.querySelector("main"), old = log();
    const follows = !old || old.scrollHeight - old.scrollTop - old.clientHeight < END_PX;
    const view = { top: old?.scrollTop ?? 0, hasFocus: old && document.activeElement === old };
    const { scrollLeft = 0, scrollTop = 0 } = before.querySelector(".scroll") ?? {};
    const href = document.activeElement?.getAttribute("href");
    before.replaceWith(document.adoptNode(fresh));
    fresh.querySelector(".scroll")?.scrollTo(scrollLeft, scrollTop);
    const pre = log();
    if (pre && follows) toEnd(pre);
    else if (pre) pre.scrollTop = view.top;
    if (view.hasFocus) pre?.focus({ preventScroll: true });
    else if (href) fresh.querySelector(`a[href="${href}"]`)?.focus({ preventScroll: true });
  };

  if (log()) toEnd(log());
  follow(() => location.href, async (answer) => {
    const fresh = (await parsed(answer)).querySelector("main");
    const isOver = fresh.hasAttribute("data-ended");
    if (fresh.outerHTML !== document.querySelector("main").outerHTML) replaceContent(fresh);
    return isOver ? ["ended", "The trial has ended"] : ["live", "Live"];
  });
};
if (document.querySelector("main[data-follows]")) followList();
