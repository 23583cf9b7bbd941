/** @file cmd_report_text.h
 * Private to `recvpool report`: reading members that may be missing or wrong, and text for terminals.
 */
#ifndef RP_AGENT_CMD_REPORT_TEXT_H
#define RP_AGENT_CMD_REPORT_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/command.h"

/** Text member, or `otherwise`. */
const char *rp__text_of(const json_t *object, const char *key, const char *otherwise);
/** Integer member; 0 where it is missing, no integer or negative. */
uint64_t rp__count_of(const json_t *object, const char *key);
/** Adds, and stays at INT64_MAX where JSON has no more room. */
uint64_t rp__add(uint64_t sum, uint64_t more);
/** The same with signs. */
int64_t rp__add_signed(int64_t sum, int64_t more);
/** Text from a file, cut to what fits, without what a terminal would obey. Returns `out`. */
const char *rp__plain_text(const char *text, char *out, size_t out_size);
/** Text that may have been cut inside a character, as JSON: what is left of it. NULL without memory. */
json_t *rp__json_text(const char *text);
/** "1.5 MiB". Returns `out`. */
const char *rp__format_bytes(uint64_t bytes, char *out, size_t out_size);
/** "-1.5 MiB". Returns `out`. */
const char *rp__format_signed_bytes(int64_t bytes, char *out, size_t out_size);
/** Integer member as text, "-" where there is none. Returns `out`. */
const char *rp__format_integer(const json_t *object, const char *key, char *out, size_t out_size);
/** "250 us": seconds in a unit that fits. Returns `out`. */
const char *rp__format_seconds(double seconds, char *out, size_t out_size);
/** "2026-01-02 03:04:05Z", "?" where that is no time. Returns `out`. */
const char *rp__format_time(double unix_seconds, char *out, size_t out_size);
/** "after 7 steps, at TIME": how far numbers go that are not the last ones. Returns `out`. */
const char *rp__format_end(uint64_t steps_least, uint64_t steps_most, double first_seconds,
                           double last_seconds, char *out, size_t out_size);
/** Rank ("-" where not known) and host:pid of a report; 64 bytes each. */
void rp__format_process(const json_t *report, char *rank, char *process, size_t size);
#endif
