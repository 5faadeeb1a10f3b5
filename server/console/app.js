// The page: sign in, and one of three views, which the fragment of the URL names.
import {loadPermissions, may, repeat, signIn, signedIn} from './api.js';
import {command, el, field, problem} from './dom.js';
import {machine} from './machine.js';
import {machines} from './machines.js';
import {language, languages, setLanguage, t} from './text.js';
import {tokens} from './tokens.js';

const main = document.getElementById('main');
let view; // what is shown
let stop = new AbortController(); // ends its calls
let routing = new AbortController(); // ends the calls of route

// resume runs the view while the page is visible.
async function resume() {
	stop.abort();
	if (document.hidden || !view?.run) return;
	stop = new AbortController();
	const {signal} = stop;
	try {
		await view.run(signal);
	} catch (error) {
		if (!signal.aborted) failed(error);
	}
}

// show replaces the view.
function show(next, focus) {
	view?.leave?.();
	view = next;
	view.restart = resume;
	const heading = el('h1', {tabindex: -1}, view.title);
	main.replaceChildren(heading, ...view.parts);
	document.title = `${view.title} - kubejoin`;
	drawTop();
	if (focus) heading.focus();
	resume();
}

// failed shows why the permissions or a view could not be read.
function failed(error) {
	if (error.status === 401) {
		const was = signedIn();
		signIn('');
		show(signInView(was ? t('refused') : t('needsSignIn')), was);
	} else {
		problem(error.status ? error.message : t('unreachable'));
	}
}

// route shows the view of the fragment.
async function route(focus) {
	view?.leave?.();
	stop.abort();
	routing.abort();
	const mine = routing = new AbortController();
	let loaded = false;
	try {
		await repeat(mine.signal, async () => {
			await loadPermissions(mine.signal);
			loaded = true;
			mine.abort();
		});
	} catch (error) {
		failed(error);
	}
	if (!loaded) return;
	problem('');
	// A link from elsewhere has no other text than a name: the page would show it as its own.
	const [, name, node = ''] = location.hash.match(/^#\/(\w+)(?:\/([-.a-z0-9]{1,253}))?$/) ?? [];
	if (name === 'tokens' || !may('list', 'explanations')) {
		const any = may('list', 'tokens') || may('create', 'tokens');
		show(any ? tokens() : {title: t('machines'), parts: [el('p', {}, t('nothingAllowed'))]}, focus);
	} else if (name === 'machine' && node) {
		show(machine(node), focus);
	} else {
		show(machines(name === 'token' && /^[a-z0-9]{6}$/.test(node) ? node : ''), focus);
	}
}

function signInView(reason) {
	const input = el('input', {type: 'password', autocomplete: 'off', required: true, spellcheck: 'false'});
	const form = el('form', {class: 'create', submit: (event) => {
		event.preventDefault();
		const token = input.value.trim();
		input.value = '';
		if (!/^[\x21-\x7e]+$/.test(token)) return problem(t('bearerBad'));
		signIn(token);
		route(true);
	}}, field(t('bearer'), input), el('button', {}, t('signIn')));
	const how = command('kubectl create token NAME --audience kubejoin --duration 1h');
	return {title: t('signIn'), signIn: true, parts: [el('p', {role: 'status'}, reason), form, el('p', {}, t('bearerHelp')), how]};
}

// forget removes all secrets, and ends a change of the view.
function forget() {
	routing.abort();
	view?.leave?.();
	signIn('');
}

// drawTop shows the links to what the caller may see.
function drawTop() {
	document.documentElement.lang = language();
	const link = (href, name) => el('a', {href, 'aria-current': view.title === name && 'page'}, name);
	const links = [may('list', 'explanations') && link('#/machines', t('machines')), (may('list', 'tokens') || may('create', 'tokens')) && link('#/tokens', t('tokens'))];
	const select = el('select', {'aria-label': t('language'), change: async () => {
		setLanguage(select.value);
		if (view.signIn) show(signInView(t('needsSignIn')));
		else await route();
		document.querySelector('#top select').focus();
	}}, ...Object.entries(languages).map(([tag, name]) => el('option', {value: tag, lang: tag}, name)));
	select.value = language();
	const out = () => {
		forget();
		problem('');
		show(signInView(t('needsSignIn')), true);
	};
	document.getElementById('top').replaceChildren(el('b', {}, 'kubejoin'), view.signIn ? '' : el('nav', {'aria-label': t('views')}, ...links.filter(Boolean)),
		el('span', {class: 'tools'}, select, view.signIn ? '' : el('button', {type: 'button', click: out}, t(signedIn() ? 'signOut' : 'otherToken'))));
}

addEventListener('hashchange', () => view?.signIn || route(true));
document.addEventListener('visibilitychange', resume);
addEventListener('pagehide', forget); // also a page in the browser's cache has no secret
route();
