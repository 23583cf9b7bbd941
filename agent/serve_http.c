/* HTTP by libmicrohttpd: routes, limits, and the files of the page. Read only: GET and HEAD. A request is
 * answered from memory; its path is compared with a fixed list, never opened. */
#include "agent/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Connections at once; the oldest idle ones end after IDLE_SECONDS, so that a thousand that say nothing keep
 * nobody out for long. */
#define CONNECTIONS 2048
#define IDLE_SECONDS 10
#define CONNECTION_BYTES (24u << 10)
#define PAGE_FILE_BYTES (8u << 20)

#ifdef RECVPOOL_CHART_JS
#define CHART_JS RECVPOOL_CHART_JS
#else
#define CHART_JS ""
#endif
#define SCRIPT "text/javascript; charset=utf-8"

/* What the page consists of. */
static struct page_file {
  const char *path, *file, *type;
  bool optional; /**< empty where there is none: the page does without */
  char *text;
  size_t bytes;
} page_files[] = {
    {.path = "/", .file = "index.html", .type = "text/html; charset=utf-8"},
    {.path = "/style.css", .file = "style.css", .type = "text/css; charset=utf-8"},
    {.path = "/app.js", .file = "app.js", .type = SCRIPT},
    {.path = "/page.js", .file = "page.js", .type = SCRIPT},
    {.path = "/job.js", .file = "job.js", .type = SCRIPT},
    {.path = "/columns.js", .file = "columns.js", .type = SCRIPT},
    {.path = "/timeline.js", .file = "timeline.js", .type = SCRIPT},
    {.path = "/elements.js", .file = "elements.js", .type = SCRIPT},
    {.path = "/chart.js", .file = CHART_JS, .type = SCRIPT, .optional = true},
};
#define PAGE_FILES (sizeof page_files / sizeof page_files[0])

struct rp_serve_http {
  struct MHD_Daemon *daemon;
  struct rp_serve_store *store;
  const struct rp_serve_options *options;
  struct sockaddr_storage bound; /**< where it listens */
  char url[INET6_ADDRSTRLEN + 32];
};

/* ---- answers ---- */

static enum MHD_Result send_answer(struct MHD_Connection *connection, unsigned code, const char *type,
                                   struct MHD_Response *response) {
  if (!response) return MHD_NO;
  (void)MHD_add_response_header(response, "Content-Type", type);
  (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
  (void)MHD_add_response_header(response, "Cache-Control", "no-store");
  (void)MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
  (void)MHD_add_response_header(
      response, "Content-Security-Policy",
      "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
      "img-src 'self' data:; base-uri 'none'; form-action 'none'; "
      "frame-ancestors 'none'");
  if (code == MHD_HTTP_METHOD_NOT_ALLOWED) (void)MHD_add_response_header(response, "Allow", "GET, HEAD");
  enum MHD_Result result = MHD_queue_response(connection, code, response);
  MHD_destroy_response(response);
  return result;
}

/* Takes `text` over. */
static enum MHD_Result send_owned(struct MHD_Connection *connection, unsigned code, const char *type,
                                  char *text, size_t bytes) {
  struct MHD_Response *response =
      text ? MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE) : NULL;
  if (!response) free(text);
  return send_answer(connection, code, type, response);
}

static enum MHD_Result send_json(struct MHD_Connection *connection, unsigned code, json_t *json) {
  char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
  json_decref(json);
  return send_owned(connection, code, "application/json", text, text ? strlen(text) : 0);
}

static enum MHD_Result send_error(struct MHD_Connection *connection, unsigned code, const char *message) {
  return send_json(connection, code, json_pack("{s:s}", "error", message));
}

static enum MHD_Result send_health(struct MHD_Connection *connection, struct rp_serve_store *store) {
  struct rp_serve_counts counts = rp_serve_store_counts(store);
  char problem[128], status[192] = "ok";
  if (counts.error)
    snprintf(status, sizeof status, "the report folder cannot be read: %s",
             rp_serve_folder_problem(counts.error, problem, sizeof problem));
  return send_json(
      connection, counts.error ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK,
      json_pack("{s:s, s:f}", "status", status, "last_look_unix_seconds", counts.last_look_unix_seconds));
}

/* The client says that it reads OpenMetrics. */
static bool wants_open_metrics(struct MHD_Connection *connection) {
  const char *accept = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Accept");
  return accept && strstr(accept, "application/openmetrics-text");
}

static enum MHD_Result send_metrics(struct MHD_Connection *connection, struct rp_serve_store *store) {
  bool open_metrics = wants_open_metrics(connection);
  size_t bytes = 0;
  char *text = rp_serve_metrics(store, open_metrics, &bytes);
  return send_owned(connection, MHD_HTTP_OK,
                    open_metrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                 : "text/plain; version=0.0.4; charset=utf-8",
                    text, bytes);
}

static enum MHD_Result send_process(struct MHD_Connection *connection, struct rp_serve_store *store,
                                    const char *number) {
  char *end = NULL;
  size_t bytes = 0;
  errno = 0;
  unsigned long long id = *number >= '0' && *number <= '9' ? strtoull(number, &end, 10) : 0;
  char *text = end && !*end && !errno ? rp_serve_store_text(store, id, &bytes) : NULL;
  if (!text) return send_error(connection, MHD_HTTP_NOT_FOUND, "there is no process with this id");
  return send_owned(connection, MHD_HTTP_OK, "application/json", text, bytes);
}

static enum MHD_Result send_page_file(struct MHD_Connection *connection, const struct page_file *file) {
  return send_answer(connection, MHD_HTTP_OK, file->type,
                     MHD_create_response_from_buffer(file->bytes, file->text, MHD_RESPMEM_PERSISTENT));
}

struct host_check {
  const struct rp_serve_http *http;
  bool foreign;
};

static enum MHD_Result check_host(void *context, enum MHD_ValueKind kind, const char *key,
                                  const char *value) {
  struct host_check *check = context;
  (void)kind;
  if (strcasecmp(key, "Host") == 0)
    check->foreign |= !value || !rp__serve_host_is_ours(check->http->options,
                                                        (const struct sockaddr *)&check->http->bound, value);
  return MHD_YES;
}

/* Each of its Host headers; none is what no browser sends. */
static bool asks_for_another(const struct rp_serve_http *http, struct MHD_Connection *connection) {
  struct host_check check = {.http = http};
  (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, check_host, &check);
  return check.foreign;
}

static enum MHD_Result route(struct rp_serve_http *http, struct MHD_Connection *connection,
                             const char *path) {
  static const char processes[] = "/api/v1/processes";
  if (asks_for_another(http, connection))
    return send_error(connection, MHD_HTTP_MISDIRECTED_REQUEST,
                      "this server is not known by that name; if it should be, start recvpool serve with "
                      "--host-name NAME");
  if (strcmp(path, "/metrics") == 0) return send_metrics(connection, http->store);
  if (strcmp(path, "/healthz") == 0) return send_health(connection, http->store);
  if (strcmp(path, "/api/v1/job") == 0)
    return send_json(connection, MHD_HTTP_OK, rp_serve_jobs_json(http->store));
  if (strcmp(path, processes) == 0)
    return send_json(connection, MHD_HTTP_OK, rp_serve_processes_json(http->store));
  if (strncmp(path, processes, sizeof processes - 1) == 0 && path[sizeof processes - 1] == '/')
    return send_process(connection, http->store, path + sizeof processes);
  for (size_t i = 0; i < PAGE_FILES; i++)
    if (page_files[i].text && strcmp(path, page_files[i].path) == 0)
      return send_page_file(connection, &page_files[i]);
  return send_error(connection, MHD_HTTP_NOT_FOUND,
                    "there is nothing here; / is the page, /metrics the metrics");
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **state) {
  static int begun;
  (void)version;
  (void)upload;
  bool reads = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
  if (!*state) { /* headers only: answering now would end the connection of clients that send a body */
    *state = &begun;
    if (reads) return MHD_YES;
    return send_error(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD");
  }
  if (*upload_bytes) {
    *upload_bytes = 0;
    return MHD_YES;
  }
  return route(context, connection, path);
}

/* ---- the page's files ---- */

static bool read_page_file(const char *dir, struct page_file *file) {
  char path[PATH_MAX];
  struct stat info;
  int length = file->file[0] == '/' ? snprintf(path, sizeof path, "%s", file->file)
                                    : snprintf(path, sizeof path, "%s/%s", dir, file->file);
  if (length < 0 || (size_t)length >= sizeof path) return false;
  FILE *in = fopen(path, "re");
  if (!in) return false;
  bool whole =
      fstat(fileno(in), &info) == 0 && S_ISREG(info.st_mode) && info.st_size < (off_t)PAGE_FILE_BYTES;
  char *text = whole ? malloc((size_t)info.st_size + 1) : NULL;
  whole = text && fread(text, 1, (size_t)info.st_size, in) == (size_t)info.st_size;
  (void)fclose(in);
  if (!whole) {
    free(text);
    return false;
  }
  file->text = text;
  file->bytes = (size_t)info.st_size;
  return true;
}

/* Beside the command where it is installed, else in the sources that it was built from. False: something is
 * missing, which `message` names. */
static bool load_page(const char *dir, char *message, size_t message_size) {
  char self[PATH_MAX], installed[PATH_MAX + 64];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length > 0) {
    self[length] = '\0';
    char *slash = strrchr(self, '/');
    if (slash) *slash = '\0';
    snprintf(installed, sizeof installed, "%s/../%s/recvpool/web", self, RECVPOOL_DATADIR);
    if (!dir && access(installed, R_OK) == 0) dir = installed;
  }
  if (!dir) dir = RECVPOOL_SOURCE_WEB;
  bool whole = true;
  for (size_t i = 0; i < PAGE_FILES; i++) {
    if (read_page_file(dir, &page_files[i])) continue;
    if (page_files[i].optional) page_files[i].text = strdup("");
    if (page_files[i].optional || !whole) continue;
    snprintf(message, message_size, "'%s' has no readable %s", dir, page_files[i].file);
    whole = false;
  }
  return whole;
}

static void unload_page(void) {
  for (size_t i = 0; i < PAGE_FILES; i++) {
    free(page_files[i].text);
    page_files[i].text = NULL;
  }
}

/* Files that the user names must be there; without those of an installation all but the page is served.
 * False: not to go on. */
static bool prepare_page(const struct rp_serve_options *options, char *message, size_t message_size) {
  char problem[PATH_MAX + 128];
  if (load_page(options->web_dir, problem, sizeof problem)) return true;
  snprintf(message, message_size,
           options->web_dir ? "--web-dir %s" : "there is no page, only API and metrics: %s; install it again",
           problem);
  return options->web_dir == NULL;
}

/* ---- listening ---- */

static rp_status resolve(const struct rp_serve_options *options, struct addrinfo **out, char *message,
                         size_t message_size) {
  char text[NI_MAXHOST + 16], *host, *port;
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
  if (strlen(options->listen) >= sizeof text) {
    snprintf(message, message_size, "the address is too long");
    return RP_ERROR_INVALID;
  }
  snprintf(text, sizeof text, "%s", options->listen);
  if (!rp__serve_split_host(text, &host, &port) || !port || !*port || strtoul(port, NULL, 10) > 65535) {
    snprintf(message, message_size, "--listen '%s': must be ADDRESS:PORT, for example 127.0.0.1:9750",
             options->listen);
    return RP_ERROR_INVALID;
  }
  int error = getaddrinfo(host, port, &hints, out);
  if (error) {
    snprintf(message, message_size, "--listen '%s': %s", options->listen, gai_strerror(error));
    return RP_ERROR_INVALID;
  }
  if (rp__serve_is_local((*out)->ai_addr) || options->allow_remote) return RP_OK;
  snprintf(message, message_size,
           "--listen '%s' can be reached from other machines, and there is no password: add --allow-remote "
           "if that "
           "is meant",
           options->listen);
  freeaddrinfo(*out);
  return RP_ERROR_INVALID;
}

static void note_url(struct rp_serve_http *http, const struct sockaddr *address) {
  char host[INET6_ADDRSTRLEN] = "";
  const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
  bool six = address->sa_family == AF_INET6;
  const void *at = six ? (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr
                       : (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
  (void)inet_ntop(address->sa_family, at, host, sizeof host);
  snprintf(http->url, sizeof http->url, six ? "http://[%s]:%u/" : "http://%s:%u/", host,
           info ? (unsigned)info->port : 0);
}

/* One mend for each way that an address can be of no use. */
static void say_cannot_listen(const char *listen, int error, char *message, size_t message_size) {
  const char *mend = error == EADDRINUSE
                         ? "end what listens there (another recvpool serve?), or name another "
                           "port with --listen, 0 for any free one"
                     : error == EACCES ? "name a port from 1024 on with --listen"
                                       : "name an address of this machine with --listen";
  snprintf(message, message_size, "cannot listen at %s: %s; %s", listen, strerror(error), mend);
}

/* Opened here and not by the library, which does not say why it cannot listen. No SO_REUSEPORT: a second
 * server at this address must fail, and not take every other request. -1 with errno. */
static int open_listener(const struct addrinfo *address) {
  const int on = 1;
  int opened = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (opened < 0) return -1;
  if (setsockopt(opened, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 && /* of connections that ended */
      (address->ai_family != AF_INET6 ||
       setsockopt(opened, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) == 0) &&
      bind(opened, address->ai_addr, address->ai_addrlen) == 0 && listen(opened, SOMAXCONN) == 0)
    return opened;
  int error = errno;
  (void)close(opened);
  errno = error;
  return -1;
}

static void raise_file_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static bool start_daemon(struct rp_serve_http *http, const struct addrinfo *address, char *message,
                         size_t message_size) {
  unsigned flags =
      MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | (address->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0u);
  int listener = open_listener(address);
  if (listener < 0) {
    say_cannot_listen(http->options->listen, errno, message, message_size);
    return false;
  }
  http->daemon = MHD_start_daemon(
      flags, 0, NULL, NULL, handle, http, MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_CONNECTION_LIMIT,
      (unsigned)CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
  if (http->daemon) return true; /* which closes the socket when it stops */
  snprintf(message, message_size, "cannot serve at %s: no thread, memory or file is left",
           http->options->listen);
  (void)close(listener);
  return false;
}

rp_status rp_serve_http_start(const struct rp_serve_options *options, struct rp_serve_store *store,
                              struct rp_serve_http **out, char *message, size_t message_size) {
  struct addrinfo *address;
  rp_status status = resolve(options, &address, message, message_size);
  if (status) return status;
  struct rp_serve_http *http = calloc(1, sizeof *http);
  if (!http) {
    freeaddrinfo(address);
    snprintf(message, message_size, "no memory");
    return RP_ERROR_NO_MEMORY;
  }
  http->store = store;
  http->options = options;
  memcpy(&http->bound, address->ai_addr, address->ai_addrlen);
  message[0] = '\0';
  bool page = prepare_page(options, message, message_size);
  raise_file_limit();
  if (!page || !start_daemon(http, address, message, message_size)) {
    unload_page();
    freeaddrinfo(address);
    free(http);
    return page ? RP_ERROR_IO : RP_ERROR_INVALID;
  }
  note_url(http, address->ai_addr);
  freeaddrinfo(address);
  *out = http;
  return RP_OK;
}

const char *rp_serve_http_url(const struct rp_serve_http *http) {
  return http->url;
}

void rp_serve_http_stop(struct rp_serve_http *http) {
  if (!http) return;
  MHD_stop_daemon(http->daemon);
  unload_page();
  free(http);
}
