// The API key: requested when the server requires one, and stored for this tab.

import { byId } from "./dom.js";
import { keepHere, recallHere } from "./store.js";

export const key = () => recallHere("key");

export function forgetKey() {
  keepHere("key", null);
}

let asking = null;

/** Shows the key dialog. Resolves to true if the user entered a key. */
export function askForKey() {
  asking ??= new Promise(show).finally(() => (asking = null));
  return asking;
}

function show(resolve) {
  const dialog = byId("key-dialog");
  const field = byId("key");
  field.value = "";
  const leave = new AbortController();
  const end = (given) => {
    leave.abort();
    dialog.close();
    resolve(given);
  };
  const { signal } = leave;
  byId("key-form").addEventListener(
    "submit",
    (event) => {
      event.preventDefault();
      keepHere("key", field.value.trim());
      end(true);
    },
    { signal },
  );
  byId("key-cancel").addEventListener("click", () => end(false), { signal });
  dialog.addEventListener("cancel", () => end(false), { signal });
  dialog.showModal();
  field.focus();
}
