/* `recvpool report --html`: the overview of a set, inside of the page that draws it. */
#include "agent/cmd_report_html.h"

#include "agent/overview.h"

/* About 400 bytes each; the timelines of 64 ranks of 128 receives, and the page opens at once. */
#define LIFETIMES_MOST 8192

bool rp__report_write_html(struct rp_read_set *set, FILE *out) {
  struct rp__stream stream = {.file = out, .markup = true};
  rp__stream_raw(&stream, rp__report_page_head);
  rp_overview_write(set, LIFETIMES_MOST, &stream);
  rp__stream_raw(&stream, rp__report_page_tail);
  return rp__stream_end(&stream);
}
