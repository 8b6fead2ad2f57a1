// Browser storage: the conversation and the settings until they are deleted, the key until the tab is
// closed. Without storage the page works, but does not remember them.

function reading(storage, name) {
  try {
    return JSON.parse(storage().getItem(`loquat.${name}`));
  } catch {
    return null;
  }
}

function writing(storage, name, value) {
  try {
    if (value === null) storage().removeItem(`loquat.${name}`);
    else storage().setItem(`loquat.${name}`, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

const lasting = () => window.localStorage;
const passing = () => window.sessionStorage;

export const recall = (name) => reading(lasting, name);
export const keep = (name, value) => writing(lasting, name, value);
export const recallHere = (name) => reading(passing, name);
export const keepHere = (name, value) => writing(passing, name, value);
