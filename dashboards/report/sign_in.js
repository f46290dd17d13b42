"use strict";
// Keeps the action key in the storage of this origin, which pages of other ports cannot read, and goes on to the searches.
(() => {
  const key = document.querySelector("[data-action-key]").dataset.actionKey;
  if (key) localStorage.setItem("parlay-action-key", key);
  else localStorage.removeItem("parlay-action-key");
  location.replace("/");
})();
