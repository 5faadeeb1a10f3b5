// The machines that join, stuck ones first.
import {Watch, now, repeat} from './api.js';
import {command, el, english, field, setText, table} from './dom.js';
import {glyphs, line, stepState} from './line.js';
import {duration, t} from './text.js';

const states = ['stuck', 'joining', 'expected', 'joined'];
const filter = {state: '', node: ''}; // until the page is reloaded

// A Row shows one machine. It is used again for each change of the machine.
class Row {
	constructor(node) {
		this.state = el('td', {});
		this.line = el('td', {class: 'progress'});
		this.duration = el('td', {class: 'number'});
		this.token = el('td', {});
		this.sentence = english('p', {}, '');
		this.command = command();
		this.advice = el('tr', {class: 'advice'}, el('td', {colspan: 5}, this.sentence, this.command));
		const name = el('th', {scope: 'row'}, el('a', {href: `#/machine/${encodeURIComponent(node)}`}, node));
		this.body = el('tbody', {}, el('tr', {}, name, this.state, this.line, this.duration, this.token), this.advice);
	}

	// draw shows the machine at a time. The line of a machine that has not joined grows with each tick.
	draw(join, at, tick) {
		if (this.join !== join) {
			this.body.className = join.state;
			this.state.replaceChildren(el('b', {}, `${glyphs[join.state]} ${t(join.state)}`), ' ', english('span', {class: 'reason'}, join.reason));
			const id = join.tokenID;
			this.token.replaceChildren(id ? el('a', {href: `#/token/${encodeURIComponent(id)}`}, el('code', {}, id)) : t('unknown'));
			this.sentence.textContent = join.sentence ?? '';
			this.command.set(join.next?.[0] ?? '');
			this.command.hidden = !join.next?.length;
			this.advice.hidden = !join.sentence;
		}
		if (this.join !== join || tick && join.state !== 'joined') this.line.replaceChildren(line(join, at));
		this.duration.textContent = join.since ? duration(at - Date.parse(join.since)) : '';
		this.join = join;
	}
}

// summary returns how many machines have joined, and why others have not.
function summary(list) {
	const counts = list.counts;
	const total = Math.max(Object.values(counts).reduce((sum, n) => sum + n, 0), list.nodes ?? 0);
	if (!total) return t('none');
	const waiting = counts.stuck + counts.joining;
	const reasons = new Map();
	for (const join of list.items.filter(({state}) => state === 'stuck' || state === 'joining')) {
		reasons.set(join.reason, (reasons.get(join.reason) ?? 0) + 1);
	}
	const parts = [t('someJoined', counts.joined, total)];
	const why = [...reasons].sort().map(([reason, n]) => `${n} ${reason}`).join(t('comma'));
	if (waiting) parts.push(t('wait', waiting) + (why && t('colon') + why)); // the page of one state has no reasons of others
	if (total > counts.joined + waiting) parts.push(t('notSeen', total - counts.joined - waiting));
	return parts.join(t('comma'));
}

// legend says what the marks mean.
function legend() {
	return el('p', {class: 'legend'}, t('legend'), ...['done', 'refused', 'unknown'].map((state) => el('span', {}, ` ${glyphs[state]} ${stepState(state)}`)));
}

// machines returns the view of all machines, or of those of a token.
export function machines(token = '') {
	const rows = new Map();
	let watch, list;
	const counts = el('p', {class: 'lead', role: 'status'});
	const more = el('p', {});
	const unread = el('div');
	const body = table(t('machines'), [t('node'), t('state'), t('line'), t('duration'), t('token')], [], {class: 'machines'});

	function draw(tick) {
		const focused = document.activeElement;
		const at = now();
		let place = body.tHead.nextSibling;
		for (const join of list.items) {
			const row = rows.get(join.node) ?? new Row(join.node);
			rows.set(join.node, row);
			row.draw(join, at, tick);
			row.body.hidden = !join.node.includes(filter.node);
			if (row.body === place) place = place.nextSibling;
			else body.insertBefore(row.body, place);
		}
		while (place) {
			const next = place.nextSibling;
			place.remove();
			place = next;
		}
		if (focused !== document.activeElement && focused.isConnected) focused.focus({preventScroll: true});
	}

	function show(next) {
		list = next;
		const present = new Set(list.items.map(({node}) => node));
		for (const node of rows.keys()) if (!present.has(node)) rows.delete(node);
		draw();
		setText(counts, summary(list));
		const all = filter.state ? list.counts[filter.state] : Object.values(list.counts).reduce((sum, n) => sum + n, 0);
		more.textContent = list.continue ? t('more', all - list.items.length) : '';
		unread.replaceChildren(...(list.unread ?? []).map(({fact, reason}) => el('p', {}, t('unread', fact, reason))));
		body.hidden = !list.items.length;
	}

	const start = () => {
		watch = new Watch({limit: 200, ...token && {token}, ...filter.state && {state: filter.state}});
	};
	start();
	const view = {
		title: t('machines'),
		// run follows the machines until the signal is aborted.
		async run(signal) {
			const clock = setInterval(() => list && draw(true), 5000);
			try {
				await repeat(signal, async () => {
					show(await watch.next(signal));
					return 1000;
				});
			} finally {
				clearInterval(clock);
			}
		},
	};
	const state = el('select', {change: () => {
		filter.state = state.value;
		start();
		view.restart();
	}}, el('option', {value: ''}, t('anyState')), ...states.map((name) => el('option', {value: name}, t(name))));
	state.value = filter.state;
	const node = el('input', {type: 'search', autocomplete: 'off', spellcheck: 'false', input: () => {
		filter.node = node.value.trim().toLowerCase();
		if (list) draw();
	}, keydown: (event) => { // a form with several fields and no button is never submitted
		if (event.key !== 'Enter' || !filter.node) return;
		const [, short] = filter.node.match(/^([a-z0-9]{6})\.[a-z0-9]{16}$/) ?? [];
		if (short) filter.node = node.value = '';
		location.hash = short ? `#/token/${short}` : `#/machine/${encodeURIComponent(filter.node)}`; // perhaps not among the first
	}});
	node.value = filter.node;
	// Somebody may paste a whole token, also as a node name: only its ID may be in the URL.
	const id = el('input', {autocomplete: 'off', spellcheck: 'false', size: 8, change: () => {
		const [short] = id.value.trim().match(/^[a-z0-9]{6}\b/) ?? [''];
		id.value = short;
		location.hash = short ? `#/token/${short}` : '#/machines';
	}});
	id.value = token;
	const controls = el('form', {class: 'filter', role: 'search', 'aria-label': t('filter')},
		field(t('node'), node), field(t('state'), state), field(t('tokenID'), id), token ? el('a', {href: '#/machines'}, t('all')) : '');
	view.parts = [controls, counts, unread, body, more, legend()];
	return view;
}
