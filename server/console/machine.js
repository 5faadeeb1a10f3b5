// One machine: its steps, and what explains them.
import {Watch, get, may, now, repeat} from './api.js';
import {command, el, english, setText, table, time} from './dom.js';
import {glyphs, line, stepState} from './line.js';
import {duration, moment, t} from './text.js';

// steps returns a table of the steps with their times.
function steps(join) {
	let before;
	const rows = join.steps.map((step) => {
		const took = step.at && before ? duration(Date.parse(step.at) - Date.parse(before)) : '';
		before = step.at ?? before;
		return [[t(`step-${step.name}`)], [`${glyphs[step.state]} ${stepState(step.state)}`], [time(step.at)], [took]];
	});
	return table(t('steps'), [t('step'), t('state'), t('time'), t('after')], rows);
}

// requestState returns what has happened to a certificate request. For one that waits, it has the command that approves it if
// the explanation advises that. Nobody has checked the other requests, and machines choose their names.
function requestState(request, next) {
	for (const state of ['failed', 'denied']) {
		const {reason, message} = request[state] ?? {};
		if (request[state]) return [`${glyphs.refused} ${t(state)} `, english('span', {}, [reason, message].filter(Boolean).join(': '))];
	}
	if (request.certificate) return [`${glyphs.done} ${t('issued')}`];
	if (request.approved) return [`${glyphs.waiting} ${t('approved')}`];
	const approve = `kubectl certificate approve ${request.name}`;
	return [`${glyphs.waiting} ${t('waits')}`, next.includes(approve) ? command(approve) : ''];
}

function requests(explanation) {
	const {requests = []} = explanation.evidence;
	const rows = requests.map((request) => [[el('code', {}, request.name)], [request.signer.replace('kubernetes.io/', '')], [time(request.created)],
		requestState(request, explanation.next ?? [])]);
	return rows.length ? table(t('requests'), [t('name'), t('signer'), t('created'), t('state')], rows, {class: 'requests'}) : '';
}

// machine returns the view of the machine with a node name.
export function machine(node) {
	const watch = new Watch({node});
	const state = el('p', {class: 'lead', role: 'status'});
	const story = el('div');
	const sentence = english('p', {}, '');
	const [next, why] = [el('div'), el('div')];
	let shown = '';

	async function explain(join, signal) {
		const explanation = may('get', 'explanations') ? await get(`v1/explain/${encodeURIComponent(node)}`, undefined, signal) : {...join, evidence: {}};
		const text = JSON.stringify([explanation.sentence, explanation.next, explanation.evidence, explanation.unread]);
		if (text === shown) return;
		shown = text;
		sentence.textContent = explanation.sentence ?? '';
		const unread = (explanation.unread ?? []).map(({fact, reason}) => el('p', {}, t('unread', fact, reason)));
		next.replaceChildren(...(explanation.next ?? []).map((line) => command(line)));
		why.replaceChildren(...unread, requests(explanation));
	}

	return {
		title: node,
		parts: [state, sentence, next, story, why],
		run: (signal) => repeat(signal, async () => {
			const [join] = (await watch.next(signal)).items;
			if (join) {
				setText(state, `${glyphs[join.state]} ${t('isSince', t(join.state), join.reason, join.since ? moment(join.since) : t('unknown'))}`);
				const token = join.tokenID ? el('p', {}, `${t('token')}: `, el('a', {href: `#/token/${encodeURIComponent(join.tokenID)}`}, el('code', {}, join.tokenID))) : '';
				story.replaceChildren(line(join, now()), steps(join), token);
			} else {
				setText(state, t('nothingAbout', node));
				story.replaceChildren();
			}
			await explain(join, signal);
			return 1000;
		}),
	};
}
