// The line of a machine in time.
import {svg} from './dom.js';
import {moment, t} from './text.js';

const shapes = {
	done: () => svg('circle', {r: 5}),
	refused: () => svg('path', {d: 'M-5-5 5 5M5-5-5 5'}),
	unknown: () => svg('text', {dy: '0.35em'}, '?'),
};

export const glyphs = {done: '●', waiting: '○', refused: '✕', unknown: '?', stuck: '▲', joining: '→', expected: '…', joined: '✓'};

export const stepState = (state) => t(state === 'refused' ? 'refusedStep' : state);

// words describes a step of a machine.
const words = (step) => `${t(`step-${step.name}`)}: ${stepState(step.state)}${step.at ? `, ${moment(step.at)}` : ''}`;

// places returns where each step that has happened is on the line, in percent. The time between the token and the first
// request has a fixed length, because it can be days. Marks never overlap.
function places(join, now) {
	const [from, to, apart] = [14, 97, 4];
	const steps = join.steps.filter((step) => step.state !== 'waiting');
	const at = (step) => Date.parse(step.at);
	const known = steps.filter((step) => step.at && step.name !== 'token').map(at);
	const start = Math.min(...known);
	const end = join.steps.at(-1).state === 'done' ? Math.max(...known) : Math.max(now, ...known);
	let last = 2 - apart;
	const xs = steps.map((step) => {
		const x = step.name === 'token' ? 2 : step.at ? from + (to - from) * (at(step) - start) / (end - start || 1) : last + 2 * apart;
		return last = Math.max(x, last + apart);
	});
	let limit = to + apart - (join.steps.length > steps.length ? apart : 0);
	for (let i = xs.length - 1; i >= 0; i--) limit = xs[i] = Math.min(xs[i], limit - apart);
	return steps.map((step, i) => ({step, x: xs[i]}));
}

// line returns the line of a machine up to the time now.
export function line(join, now) {
	const marks = places(join, now);
	const node = svg('svg', {class: `line ${join.state}`, role: 'img', 'aria-label': join.steps.map(words).join('; ')});
	const stroke = (from, to, kind) => node.append(svg('line', {class: kind, x1: `${from}%`, x2: `${to}%`, y1: 12, y2: 12}));
	marks.slice(1).forEach(({step, x}, i) => {
		const sure = step.state !== 'unknown' && marks[i].step.state !== 'unknown';
		stroke(marks[i].x, x, sure ? 'sure' : 'unsure');
	});
	if (marks.length < join.steps.length) stroke(marks.at(-1)?.x ?? 2, 99, 'open');
	for (const {step, x} of marks) {
		node.append(svg('svg', {class: `mark ${step.state}`, x: `${x}%`, y: 12, overflow: 'visible'}, svg('title', {}, words(step)), shapes[step.state]()));
	}
	return node;
}
