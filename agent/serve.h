/** @file serve.h
 * `recvpool serve`: what its parts share.
 *
 *   folder -> store (one thread reads what changed) -> API, metrics, page (HTTP threads; read only)
 *
 * No path of a request reaches the file system: reports are found by a number that the store gave them, files
 * of the page by name in a table that was filled at start.
 */
#ifndef RP_AGENT_SERVE_H
#define RP_AGENT_SERVE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/report_input.h"
#include "recvpool/status.h"

/** Names given by --host-name; more are refused. */
#define RP_SERVE_HOST_NAMES 64

struct rp_serve_options {
  const char *listen;     /**< ADDRESS:PORT */
  const char *report_dir; /**< folder that agents write to */
  const char *web_dir;    /**< files of the page; NULL: where they were installed */
  bool allow_remote;
  uint64_t keep_seconds; /**< ended processes are shown this long after their last report */
  const char *host_names[RP_SERVE_HOST_NAMES]; /**< further names that requests may ask for */
  size_t host_name_count;
};

/* ---- store ---- */

/** Processes kept at once; those beyond are counted. */
#define RP_SERVE_PROCESSES 4096

/** One process as the store keeps it. Owned by the store. */
struct rp_serve_process {
  char *name;      /**< of its file */
  uint64_t id;     /**< never given twice */
  json_t *summary; /**< the report without the lifetimes of its channels, and with "id"; never changes */
  char *text;      /**< the report as it was written */
  size_t text_bytes;
  double written_unix_seconds;
  struct rp_input_identity identity;
  bool second; /**< attach wrote it, and the agent in the process wrote one: does not count */
  bool finished;
  bool ended;                           /**< gone without a last report */
  uint64_t mtime_ns, inode, size_bytes; /**< of the file that was read */
  uint64_t looked;                      /**< number of the look that saw it last */
};

/** What a look at the folder found. */
struct rp_serve_counts {
  uint64_t skipped; /**< files that are there and cannot be used */
  uint64_t dropped; /**< reports beyond RP_SERVE_PROCESSES */
  uint64_t looks;   /**< at the folder so far */
  int error;        /**< why the last look could not read the folder, as errno; 0: it could */
  double last_look_unix_seconds;
};

struct rp_serve_store;

/** Starts the thread that watches `options->report_dir` (which may not exist yet). */
rp_status rp_serve_store_start(const struct rp_serve_options *options, struct rp_serve_store **out);
/** Ends the thread and frees the store; NULL is allowed. */
void rp_serve_store_stop(struct rp_serve_store *store);
/** Calls `visit` for each process, by id, under the store's lock: it must be quick and call nothing of the
 * store. */
void rp_serve_store_each(struct rp_serve_store *store,
                         void (*visit)(void *context, const struct rp_serve_process *process), void *context);
/** Text of one report, or NULL; owned by the caller. */
char *rp_serve_store_text(struct rp_serve_store *store, uint64_t id, size_t *bytes);
struct rp_serve_counts rp_serve_store_counts(struct rp_serve_store *store);
/** Files skipped, as an array of {name, reason}; NULL without memory. Owned by the caller. */
json_t *rp_serve_store_skipped(struct rp_serve_store *store);
/** The folder that it watches; owned by the store, and never changes. */
const char *rp_serve_store_dir(const struct rp_serve_store *store);
/** Whether the folder can be opened: 0 or errno. Thread-safe. */
int rp_serve_folder_error(const char *dir);
/** What such an error means, in a few words; returns `out`. Thread-safe. */
const char *rp_serve_folder_problem(int error, char *out, size_t out_size);
/** Seconds since 1970. */
double rp_serve_now(void);

/* ---- documents; NULL without memory, else owned by the caller ---- */

/** `/api/v1/processes` */
json_t *rp_serve_processes_json(struct rp_serve_store *store);
/** `/api/v1/job` */
json_t *rp_serve_jobs_json(struct rp_serve_store *store);
/** `/metrics`, in the Prometheus text format or as OpenMetrics. */
char *rp_serve_metrics(struct rp_serve_store *store, bool open_metrics, size_t *bytes);

/* ---- whom a request asks for ---- */

struct sockaddr;

/** Splits "HOST", "HOST:PORT", "[HOST]" and "[HOST]:PORT" in place; *port is NULL where there is none. False
 * where `text` is none of these. */
bool rp__serve_split_host(char *text, char **host, char **port);
/** Only this machine can reach `address`. */
bool rp__serve_is_local(const struct sockaddr *address);
/** Whether `name` is a name, or an address, without a port. */
bool rp__serve_is_host_name(const char *name);
/** Whether the Host header of a request names this server, which listens at `bound`: by a loopback name or
 * address, by the address or name it listens at, by any address if it listens at all of them, or by one of
 * `options->host_names`. Ports are not compared: they may be forwarded. Thread-safe. */
bool rp__serve_host_is_ours(const struct rp_serve_options *options, const struct sockaddr *bound,
                            const char *header);

/* ---- HTTP ---- */

struct rp_serve_http;

/** Listens. `options` must outlive it. On failure `message` says what is wrong; on success it is empty or
 * says what is missing. RP_ERROR_INVALID: an option; RP_ERROR_IO, RP_ERROR_NO_MEMORY. */
rp_status rp_serve_http_start(const struct rp_serve_options *options, struct rp_serve_store *store,
                              struct rp_serve_http **out, char *message, size_t message_size);
/** Where it listens, as "http://ADDRESS:PORT/". */
const char *rp_serve_http_url(const struct rp_serve_http *http);
void rp_serve_http_stop(struct rp_serve_http *http);

#endif
