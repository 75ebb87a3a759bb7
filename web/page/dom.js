/**
 * Making and finding elements.
 *
 * Owns: the only two ways in which this page touches the document's tree. Text is always set as text, so nothing that a model
 * or a manifest says can become markup. Knows nothing of: what is shown.
 */

/**
 * A new element. `class`, `data-*`, `aria-*` and other attributes by name; `on*` functions as listeners; true sets an empty
 * attribute, false and null set none.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, string | number | boolean | null | ((event: Event) => void)>} [attributes]
 * @param {...(Node | string | null)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== null) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/**
 * The element that index.html has under this id.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} id
 * @returns {HTMLElementTagNameMap[T]}
 */
export function the(tag, id) {
  const element = document.getElementById(id);
  if (element?.localName !== tag) throw new Error(`index.html: #${id}: is ${element?.localName}, must be ${tag}`);
  return /** @type {HTMLElementTagNameMap[T]} */ (element);
}
