// The tokens with their limits and use, and a form for a new one.
import {call, get, may, now, repeat} from './api.js';
import {command, el, english, field, problem, table} from './dom.js';
import {duration, t} from './text.js';

const formats = ['text', 'script', 'cloud-config', 'ignition', 'yaml', 'kubeconfig', 'json'];
const lifetimes = ['1h', '2h', '8h', '24h', '72h', '168h'];

function row(token) {
	const used = token.nodes?.length ?? 0;
	const limit = token.maxNodes;
	const use = limit ? [t('of', used, limit), el('meter', {min: 0, max: limit, value: used, 'aria-hidden': 'true'})] : [t('unlimited', used)];
	const names = (token.nodeNames ?? []).join(', ');
	return [
		[el('a', {href: `#/token/${encodeURIComponent(token.id)}`}, el('code', {}, token.id))],
		[english('span', {}, [token.status, token.problem].filter(Boolean).join(': '))],
		use,
		[names ? el('code', {}, names) : t('anyName')],
		[token.expires ? duration(Date.parse(token.expires) - now()) : t('never')],
		[token.description ?? ''],
	];
}

// secret shows a join command until it is removed.
function secret(text, warnings) {
	const join = command(text);
	join.firstChild.tabIndex = 0; // long ones scroll
	const heading = el('h2', {tabindex: -1}, t('secret'));
	const node = el('section', {class: 'secret'}, heading, el('p', {}, t('secretHelp')), ...warnings.map((line) => english('p', {class: 'warning'}, line)), join);
	node.clear = () => {
		join.set('');
		node.remove();
	};
	node.append(el('button', {type: 'button', click: node.clear}, t('forget')));
	node.shown = () => heading.focus();
	return node;
}

// warningsIn returns the texts of a header Warning.
function warningsIn(header) {
	return [...(header ?? '').matchAll(/299 - "((?:[^"\\]|\\.)*)"/g)].map(([, text]) => text.replace(/\\(.)/g, '$1'));
}

// creator returns the form. created is called with the element that has the join command.
function creator(created) {
	const select = (name, values, value) => {
		const control = el('select', {name}, ...values.map((option) => el('option', {}, option)));
		control.value = value;
		return control;
	};
	const error = el('p', {class: 'warning', role: 'alert', lang: 'en'});
	const button = el('button', {}, t('create'));
	const form = el('form', {class: 'create', submit: async (event) => {
		event.preventDefault();
		const {maxNodes, nodeNames, ttl, format, description} = form.elements;
		const send = {maxNodes: maxNodes.valueAsNumber, ttl: ttl.value, format: format.value};
		const names = nodeNames.value.split(/[\s,]+/).filter(Boolean);
		if (names.length) send.nodeNames = names;
		if (description.value) send.description = description.value;
		button.disabled = true;
		error.textContent = '';
		for (const control of form.elements) control.removeAttribute('aria-invalid');
		try {
			const response = await call('v1/token/print-join-command', {send});
			created(secret(await response.text(), warningsIn(response.headers.get('Warning'))));
		} catch (e) {
			error.textContent = e.status ? e.message : t('unreachable');
			form.elements.namedItem(e.field ?? '')?.setAttribute('aria-invalid', 'true');
		} finally {
			button.disabled = false;
		}
	}},
	el('h2', {}, t('newToken')),
	field(t('maxNodes'), el('input', {name: 'maxNodes', type: 'number', min: 1, max: 1000, value: 1, required: true})),
	field(t('nodeNames'), el('input', {name: 'nodeNames', autocomplete: 'off', spellcheck: 'false', placeholder: 'rack7-*'})),
	field(t('ttl'), select('ttl', lifetimes, '2h')), field(t('format'), select('format', formats, 'text')),
	field(t('description'), el('input', {name: 'description', autocomplete: 'off', maxlength: 1024})), button, error);
	return form;
}

// tokens returns the view of all tokens.
export function tokens() {
	const list = el('div', {});
	const place = el('div', {});
	let join;
	const clear = () => {
		join?.clear();
		join = undefined;
	};
	const view = {
		title: t('tokens'),
		run: (signal) => repeat(signal, async () => {
			if (!may('list', 'tokens')) return 30_000;
			const {items, warnings = [], continue: rest} = await get('v1/token', {limit: 200}, signal);
			const all = table(t('tokens'), [t('tokenID'), t('state'), t('use'), t('names'), t('expires'), t('description')], items.map(row), {class: 'tokens'});
			const notes = warnings.map((line) => english('p', {class: 'warning'}, line));
			list.replaceChildren(...notes, items.length ? all : el('p', {}, t('noTokens')), rest ? el('p', {}, t('moreTokens')) : '');
			return 30_000;
		}),
		leave: clear, // the secret is in no element from now on
	};
	view.parts = [place, list];
	if (may('create', 'tokens')) {
		view.parts.push(creator((made) => {
			clear();
			join = made;
			place.replaceChildren(join);
			join.shown();
			problem('');
			view.restart();
		}));
	}
	return view;
}
