/** @file command.h
 * The parts of the `recvpool` command. Subcommands take their own arguments (argv[0] is their name) and
 * return the exit status: 0, 1 for a failure, 2 for wrong usage. Nothing here is thread-safe.
 */
#ifndef RP_AGENT_COMMAND_H
#define RP_AGENT_COMMAND_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "recvpool/status.h"

#define RP_EXIT_FAILURE 1
#define RP_EXIT_USAGE 2
/** The command succeeded, and its reports tell of unsafe reuse that was not prevented. */
#define RP_EXIT_VIOLATIONS 3
/** A right, or something of this machine, is missing. */
#define RP_EXIT_UNAVAILABLE 4

/** Runs a command with the agent attached; passes its exit status through. */
int rp_cmd_run(int argc, char **argv);
/** Shows the reports of any number of processes. */
int rp_cmd_report(int argc, char **argv);
/** Ends the sharing of memory in a running process. */
int rp_cmd_disable(int argc, char **argv);
/** Plans pools from a schedule on paper. */
int rp_cmd_plan(int argc, char **argv);
/** Observes running processes by uprobes. */
int rp_cmd_attach(int argc, char **argv);
/** Says what works on this machine and what does not. */
int rp_cmd_doctor(int argc, char **argv);

/** Serves reports over HTTP: page, API and metrics. */
int rp_cmd_serve(int argc, char **argv);

/** Prints "recvpool SUBCOMMAND: message" on stderr, as one line. */
void rp_cmd_error(const char *subcommand, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Replaces what a terminal would obey (control characters of ASCII and, as UTF-8, of Latin-1) by '?', in
 * place. */
void rp_cmd_plain(char *text);
/** Says what is wrong with the option that getopt_long answered with '?' or ':'; returns RP_EXIT_USAGE. */
int rp_cmd_bad_option(const char *subcommand, int answer, char **argv, int optind_before);

/** Path of librecvpool.so: beside the command, relative to it, or where it was installed. RP_ERROR_NOT_FOUND.
 */
rp_status rp_cmd_find_agent(char *out, size_t out_size);
/** Starts `argv` as a child, forwards signals to it and waits for it. Returns the exit status to end with:
 * the child's, 128 + the signal that ended it (which is then in `*ended_by`, else 0), 127 where the command
 * does not exist, 126 where it cannot be run. */
int rp_cmd_spawn(char **argv, int *ended_by);

struct rp_read_digest; /* cmd_report_digest.h */

/** One report that was read. */
struct rp_read_report {
  char *path;
  json_t *json; /**< NULL where only the digest is kept: see rp_read_load */
  char *text;   /**< the file, where there was room to keep it; else NULL */
  size_t text_bytes;
  bool named;  /**< by the user, so that links are followed */
  bool second; /**< attach wrote it, and the agent in the process wrote one: on its way out of the set */
  bool ended;  /**< its process is gone, and this was its last report although it says that it runs */
  size_t job;  /**< index of its job: reports that share a communicator, directly or through others */
  struct rp_read_digest *digest; /**< made by rp_read_finish */
};

/** Reports read from files and folders, by job, then rank, then path. */
struct rp_read_set {
  struct rp_read_report *reports;
  size_t count;
  size_t job_count;
  size_t jobs_found;      /**< in what was read, also those that were not chosen */
  size_t jobs_before;     /**< of these, before the first one that is left */
  size_t *job_first;      /**< [job_count + 1] index of the first report of each job, and `count` */
  json_t *skipped;        /**< array of {path, reason} */
  bool path_missing;      /**< something that the user named cannot be used */
  const char *subcommand; /**< named in messages; NULL: report */
  bool lean;       /**< set before reading: keep digests, not the reports, so that memory stays bounded */
  bool keep_texts; /**< set before reading, with `lean`: reports will be loaded again */
  bool colour;     /**< rp_report_print marks what matters, for a terminal */
  bool progress;   /**< set before reading: show how far it is on stderr, which is a terminal */
};

/** Adds FILE, or every *.json file of folder DIR whose name does not begin with a dot, as files to be read;
 * what cannot be is added to `skipped` with the reason. RP_ERROR_NO_MEMORY is the only failure. */
rp_status rp_read_add(struct rp_read_set *set, const char *path);
/** Reads what was added, on as many threads as are worth it, and skips what cannot be used; then sorts the
 * set, drops what was read twice and tells jobs apart. Call once, after the last rp_read_add. */
rp_status rp_read_finish(struct rp_read_set *set);
/** Leaves only `job` in a finished set. RP_ERROR_NO_MEMORY: nothing has changed. */
rp_status rp_read_choose_job(struct rp_read_set *set, size_t job);
/** Report `index` of a finished set; a reference that the caller releases. Of a lean set it may be read
 * again. Where the file has changed since, so does the digest; where it is gone or torn, it is skipped, its
 * digest is emptied, and the answer is NULL. So sums are those of what was loaded when they are taken after
 * it. */
json_t *rp_read_load(struct rp_read_set *set, size_t index);
/** Frees what the set owns. */
void rp_read_fini(struct rp_read_set *set);

/** Writes the set as one document (job.schema.json), with `extra` as the member `extra_name` unless NULL.
 * Takes `extra` over. False: no memory, or `out` cannot be written. */
bool rp_report_write_json(struct rp_read_set *set, const char *extra_name, json_t *extra, FILE *out);
/** Totals of the reports of `job` (all if SIZE_MAX), as in job.schema.json. Owned by the caller. */
json_t *rp_report_totals_json(const struct rp_read_set *set, size_t job);
/** Processes of `job` (all if SIZE_MAX) that have ended without a final report. */
size_t rp_report_ended(const struct rp_read_set *set, size_t job);
/** Sentences that the reports of `job` (all if SIZE_MAX) say, each with the number of processes that say it.
 * Owned by the caller. */
json_t *rp_report_notes(const struct rp_read_set *set, size_t job);
/** Prints the set as a table, totals, a conclusion and the next step. */
void rp_report_print(const struct rp_read_set *set, FILE *out);
/** Number of `job`, from 1, among those found. */
size_t rp_report_number(const struct rp_read_set *set, size_t job);
/** Writes what tells `job` from others: command, hosts, whether it enforced. */
void rp_report_title(const struct rp_read_set *set, size_t job, char *out, size_t out_size);
/** Room for a conclusion or a next step, which may quote a reason of a report. */
#define RP_REPORT_SENTENCE_BYTES 1536
/** Writes the one-sentence conclusion over `job`. */
void rp_report_conclude(const struct rp_read_set *set, size_t job, char *out, size_t out_size);
/** Writes what to do next about `job`, in one sentence. */
void rp_report_next_step(const struct rp_read_set *set, size_t job, char *out, size_t out_size);

#endif
