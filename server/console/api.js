// Calls of the API. The bearer token is in this variable alone: never in the URL, and in no storage.
import {problem} from './dom.js';
import {duration, t} from './text.js';

let bearer = '';
let permissions; // undefined if the server does not say
let ahead = 0; // how far the server's clock is ahead, in milliseconds

export const signedIn = () => bearer !== '';

export function signIn(token) {
	bearer = token;
	permissions = undefined;
}

export const now = () => Date.now() + ahead;

// call sends a request, and returns the response. The error of a problem has its status, field and time to wait.
export async function call(path, {signal, send} = {}) {
	const headers = new Headers();
	if (bearer) headers.set('Authorization', `Bearer ${bearer}`);
	if (send) headers.set('Content-Type', 'application/json');
	const timeout = AbortSignal.timeout(90_000);
	const response = await fetch(path, {
		method: send ? 'POST' : 'GET', headers, body: send && JSON.stringify(send),
		signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
		cache: 'no-store', credentials: 'same-origin', mode: 'same-origin', redirect: 'error',
	});
	const difference = Date.parse(response.headers.get('Date')) - Date.now();
	ahead = Math.abs(difference) > 2000 ? difference : 0; // the header has whole seconds
	if (response.ok) return response;
	const {detail, title, field} = await response.json().catch(() => ({}));
	const error = new Error(detail || title || `${response.status} ${response.statusText}`);
	throw Object.assign(error, {status: response.status, field, wait: Number(response.headers.get('Retry-After'))});
}

export const get = async (path, query, signal) => (await call(query ? `${path}?${new URLSearchParams(query)}` : path, {signal})).json();

// loadPermissions reads what the caller may do.
export async function loadPermissions(signal) {
	try {
		permissions = (await get('v1/permissions', undefined, signal)).items;
	} catch (error) {
		if (error.status !== 404) throw error;
		permissions = undefined;
	}
}

// may reports whether to offer something. If the server does not say, reading is offered, and nothing that changes.
export function may(verb, resource) {
	if (!permissions) return verb !== 'create';
	return permissions.some((p) => p.verb === verb && p.resource === resource && !p.name);
}

// sleep waits, or returns early when the signal is aborted.
function sleep(ms, signal) {
	return new Promise((done) => {
		const end = () => {
			clearTimeout(timer);
			signal.removeEventListener('abort', end);
			done();
		};
		const timer = setTimeout(end, ms);
		signal.addEventListener('abort', end);
	});
}

// repeat calls step until the signal is aborted, and again a while after a failure. step returns how long to wait.
// A refusal that no retry changes ends it.
export async function repeat(signal, step) {
	for (let pause = 1; !signal.aborted;) {
		try {
			const wait = await step();
			if (signal.aborted) return;
			problem('');
			pause = 1;
			await sleep(wait, signal);
		} catch (error) {
			if (signal.aborted) return;
			if (error.status === 401) throw error;
			const text = error.status ? error.message : t('unreachable');
			if (error.status >= 400 && error.status < 500 && error.status !== 429) return problem(text);
			const wait = 1000 * Math.max(pause, error.wait || 0);
			problem(t('retrying', text, duration(wait)));
			await sleep(wait, signal);
			pause = Math.min(2 * pause, 30);
		}
	}
}

// A Watch follows a list of machines. It keeps only the machines of the last page.
export class Watch {
	#query;
	#cursor = '';
	#joins = new Map();

	constructor(query) {
		this.#query = query;
	}

	// next waits for a change, and returns the list with all its items.
	async next(signal) {
		const after = this.#cursor ? {after: this.#cursor, wait: '30s'} : {};
		const list = await get('v1/join', {...this.#query, ...after}, signal);
		const before = this.#cursor ? this.#joins : new Map();
		const changed = new Map(list.items.map((join) => [join.node, join]));
		const order = this.#cursor ? list.order ?? [] : [...changed.keys()];
		this.#joins = new Map(order.map((node) => [node, changed.get(node) ?? before.get(node)]));
		this.#cursor = list.cursor;
		return {...list, items: [...this.#joins.values()]};
	}
}
