// The labels of the page, and the forms of times. What the server says is shown as it is, in English.

export const languages = {en: 'English', 'zh-CN': '简体中文'};

const labels = {
	machines: ['Machines', '机器'],
	tokens: ['Tokens', '令牌'],
	language: ['Language', '语言'],
	views: ['Views', '视图'],
	signIn: ['Sign in', '登录'],
	signOut: ['Sign out', '退出'],
	otherToken: ['Sign in with a token', '使用令牌登录'],
	bearer: ['Bearer token', '持有者令牌（bearer token）'],
	bearerHelp: ['The page keeps the token in memory until you reload or close it. On a cluster, get a token for one hour:', '页面只在内存中保存该令牌，直到重新加载或关闭页面。在集群上，可获取一小时有效的令牌：'],
	bearerBad: ['A bearer token has only letters, digits and punctuation.', '持有者令牌只包含字母、数字和标点。'],
	refused: ['The server does not accept this token.', '服务器不接受该令牌。'],
	needsSignIn: ['Sign in to see what joins.', '登录后可查看正在加入的机器。'],
	nothingAllowed: ['You may not list machines or tokens. Ask an administrator for the ClusterRole kubejoin:viewer.', '你无权列出机器或令牌。请向管理员申请 ClusterRole kubejoin:viewer。'],
	node: ['Node', '节点'],
	state: ['State', '状态'],
	line: ['Progress', '进度'],
	duration: ['For', '持续时间'],
	token: ['Token', '令牌'],
	anyState: ['any', '任意'],
	filter: ['Filter', '筛选'],
	tokenID: ['Token ID', '令牌 ID'],
	all: ['All machines', '全部机器'],
	stuck: ['stuck', '受阻'],
	joining: ['joining', '正在加入'],
	expected: ['expected', '尚未出现'],
	joined: ['joined', '已加入'],
	'step-token': ['token created', '创建令牌'],
	'step-requested': ['certificate requested', '请求证书'],
	'step-claimed': ['name claimed', '占用名称'],
	'step-issued': ['certificate issued', '签发证书'],
	'step-registered': ['Node registered', '注册 Node'],
	'step-ready': ['Node Ready', 'Node 变为 Ready'],
	done: ['done', '完成'],
	waiting: ['not yet', '尚未发生'],
	refusedStep: ['refused', '被拒绝'],
	unknown: ['unknown', '未知'],
	legend: ['Each line begins with the token and ends now, or when the Node is Ready:', '每条线从令牌开始，到现在或 Node 变为 Ready 为止：'],
	none: ['no machine joins, and none has registered within the last hour', '没有机器正在加入，过去一小时内也没有机器注册'],
	someJoined: ['{0} of {1} joined', '{1} 台中 {0} 台已加入'],
	wait: ['{0} wait', '{0} 台在等待'],
	colon: [': ', '：'],
	comma: [', ', '，'],
	notSeen: ['{0} not seen', '{0} 台尚未出现'],
	more: ['and {0} more', '另有 {0} 台'],
	unread: ['{0} could not be read: {1}', '无法读取 {0}：{1}'],
	retrying: ['Retrying in {1}: {0}', '{1}后重试：{0}'],
	unreachable: ['the server does not respond', '服务器没有响应'],
	copy: ['Copy', '复制'],
	copied: ['Copied.', '已复制。'],
	copyByHand: ['Selected. Copy it with the keyboard.', '已选中，请用键盘复制。'],
	isSince: ['{0} ({1}) since {2}', '{0}（{1}），开始时间：{2}'],
	nothingAbout: ['kubejoin knows no machine named {0}.', 'kubejoin 没有关于机器 {0} 的信息。'],
	steps: ['Steps', '步骤'],
	step: ['Step', '步骤'],
	time: ['Time', '时间'],
	after: ['Since last step', '距上一步骤'],
	requests: ['Certificate requests', '证书请求'],
	name: ['Name', '名称'],
	signer: ['Signer', '签名者'],
	created: ['Created', '创建时间'],
	waits: ['waits', '等待批准'],
	approved: ['approved', '已批准'],
	denied: ['denied', '被拒绝'],
	failed: ['failed', '失败'],
	issued: ['issued', '已签发'],
	description: ['Description', '说明'],
	use: ['Nodes', '节点数'],
	of: ['{0} of {1}', '{0} / {1}'],
	unlimited: ['{0}, unlimited', '{0}，不限'],
	names: ['Names', '名称'],
	anyName: ['any', '任意'],
	expires: ['Time left', '剩余有效期'],
	never: ['never expires', '永不过期'],
	noTokens: ['There are no tokens.', '没有令牌。'],
	moreTokens: ['There are more: kubejoin token list', '还有更多：kubejoin token list'],
	newToken: ['New limited token', '新建受限令牌'],
	maxNodes: ['Maximum nodes', '最多节点数'],
	nodeNames: ['Node names, with * for any characters', '节点名称，* 表示任意字符'],
	ttl: ['Lifetime', '有效期'],
	format: ['Format', '格式'],
	create: ['Create the token', '创建令牌'],
	secret: ['Join command of the new token', '新令牌的加入命令'],
	secretHelp: ['This is shown once. Anyone who has it can join machines within the limits of the token.', '仅显示一次。持有者可以在令牌的限制内加入机器。'],
	forget: ['Done, remove it', '完成并清除'],
};

let column, moments;

export const language = () => Object.keys(languages)[column];

export function setLanguage(tag) {
	column = Object.keys(languages).indexOf(tag);
	moments = new Intl.DateTimeFormat(tag, {dateStyle: 'medium', timeStyle: 'medium'});
}

setLanguage(navigator.language.startsWith('zh') ? 'zh-CN' : 'en');

// t returns a label, with the arguments in place of {0} and {1}.
export function t(name, ...args) {
	return labels[name][column].replace(/\{(\d)\}/g, (_, at) => args[at]);
}

// duration returns the largest unit of a time in milliseconds.
export function duration(ms) {
	const units = [['day', 86400], ['hour', 3600], ['minute', 60], ['second', 1]];
	const seconds = Math.max(0, Math.round(ms / 1000));
	const [unit, size] = units.find(([, size]) => seconds >= 2 * size) ?? units[3];
	return new Intl.NumberFormat(language(), {style: 'unit', unit, unitDisplay: 'short'}).format(Math.floor(seconds / size));
}

export const moment = (time) => moments.format(new Date(time));
