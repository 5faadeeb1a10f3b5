// Elements from text. Nothing here makes markup from a string.
import {moment, t} from './text.js';

// Style sheets may change how a table is displayed. These roles keep it a table for screen readers.
const roles = {TABLE: 'table', THEAD: 'rowgroup', TBODY: 'rowgroup', TR: 'row', TD: 'cell'};

// el returns an element with attributes, listeners (functions) and children. Strings become text.
export function el(name, attributes, ...children) {
	return build(document.createElement(name), attributes, children);
}

// svg is el for elements of SVG.
export function svg(name, attributes, ...children) {
	return build(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function build(node, attributes = {}, children) {
	const role = attributes.scope ? {row: 'rowheader', col: 'columnheader'}[attributes.scope] : roles[node.tagName];
	if (role) node.setAttribute('role', role);
	for (const [key, value] of Object.entries(attributes)) {
		if (typeof value === 'function') node.addEventListener(key, value);
		else if (value === true) node.setAttribute(key, '');
		else if (value !== undefined && value !== false) node.setAttribute(key, value);
	}
	node.append(...children.filter((child) => child !== undefined && child !== ''));
	return node;
}

// table returns a table. A row is a list of cells, and a cell a list of children. On a narrow page, each cell has its label.
export function table(caption, columns, rows = [], attributes = {}) {
	const head = el('thead', {}, el('tr', {}, ...columns.map((name) => el('th', {scope: 'col'}, name))));
	const body = rows.map(([name, ...cells]) => el('tr', {}, el('th', {scope: 'row'}, ...name),
		...cells.map((children, i) => el('td', {'data-label': columns[i + 1]}, ...children))));
	return el('table', attributes, el('caption', {}, caption), head, body.length ? el('tbody', {}, ...body) : '');
}

// english returns an element with text of the server, for screen readers in another language.
export const english = (name, attributes, text) => el(name, {lang: 'en', ...attributes}, text);

export const time = (at) => at ? el('time', {datetime: at}, moment(at)) : '';

// say shows a short message, also to screen readers.
let saying;
export function say(text) {
	const notice = document.getElementById('notice');
	notice.textContent = text;
	clearTimeout(saying);
	saying = setTimeout(() => { notice.textContent = ''; }, 4000);
}

// setText changes a text only if it differs: a screen reader reads each change of a status.
export function setText(node, text) {
	if (node.textContent !== text) node.textContent = text;
}

// problem shows why the page is not up to date. An empty text removes it.
export const problem = (text) => setText(document.getElementById('problem'), text);

// command returns an element with text to paste and a button that copies it. Its function set changes the text.
export function command(text = '') {
	const code = el('code', {lang: 'en'});
	const button = el('button', {type: 'button', click: async () => {
		try {
			await navigator.clipboard.writeText(code.textContent);
			say(t('copied'));
		} catch {
			getSelection().selectAllChildren(code);
			say(t('copyByHand'));
		}
	}}, t('copy'));
	const node = el('div', {class: 'command'}, code, button);
	node.set = (text) => setText(code, text);
	node.set(text);
	return node;
}

// field returns a control with its label.
export function field(label, control) {
	return el('label', {}, el('span', {}, label), control);
}
