/** @file log.h
 * What the injected library says. One warning line per process on stderr holds everything that is wrong, and
 * what makes a call of the program fail is said before that call returns; verbose lines only with
 * RECVPOOL_VERBOSE; never stdout. All functions keep errno and are thread-safe.
 */
#ifndef RP_AGENT_LOG_H
#define RP_AGENT_LOG_H

#include <stdbool.h>
#include <stddef.h>

#define RP_LOG_WARNINGS 32
#define RP_LOG_TEXT 2048

/** Switches verbose lines on. Before threads start. */
void rp_log_set_verbose(bool verbose);
/** Notes something that is wrong, for the report and for the one line. The same text counts once; what does
 * not fit is dropped. Allocates nothing. */
void rp_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** The same of what makes a call of the program fail: a line of its own, that rp_log_flush_urgent prints. */
void rp_warn_urgent(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** Prints what is urgent, once: before the call returns to the program, which may end itself at once. Waits
 * for no reader; under no lock. Cheap when there is nothing. */
void rp_log_flush_urgent(void);
/** Prints the one line if there is anything to say and it has not been printed; later warnings go to the
 * report only. */
void rp_log_flush(void);
/** One verbose line. */
void rp_verbose(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** Copies out pointers to the warnings so far (they live for ever); their number. */
size_t rp_log_warnings(const char **out, size_t capacity);

#endif
