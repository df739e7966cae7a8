#include "evolve/proposer/http_post.h"

#include <curl/curl.h>

#include <chrono>
#include <memory>
#include <mutex>

namespace niche::evolve::proposer {
namespace {

using dispatch::Status;
using SteadyClock = std::chrono::steady_clock;

constexpr size_t kErrorBodyMax = 16 << 10;

double seconds_since(SteadyClock::time_point t) {
  return std::chrono::duration<double>(SteadyClock::now() - t).count();
}

struct Transfer {
  const HttpRequest* request;
  CURL* easy = nullptr;
  HttpAnswer answer;
  size_t bytes = 0;
  bool too_long = false;
  SteadyClock::time_point last_byte = SteadyClock::now();
};

size_t on_body(char* data, size_t, size_t n, void* self) {
  auto& t = *static_cast<Transfer*>(self);
  t.last_byte = SteadyClock::now();
  t.bytes += n;
  if (t.bytes > t.request->bytes_max) {
    t.too_long = true;
    return 0;
  }
  long status = 0;
  curl_easy_getinfo(t.easy, CURLINFO_RESPONSE_CODE, &status);
  if (status != 200) {
    t.answer.error_body.append(data, std::min(n, kErrorBodyMax - t.answer.error_body.size()));
    return n;
  }
  if (t.request->on_bytes && !t.request->on_bytes({data, n})) {
    t.answer.stopped = true;
    return 0;
  }
  return n;
}

std::string host_of(const std::string& url) {
  const size_t from = url.find("://"), begin = from == std::string::npos ? 0 : from + 3;
  return url.substr(begin, url.find('/', begin) - begin);
}

}  // namespace

dispatch::Result<HttpAnswer> http_post(const HttpRequest& request) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  const std::unique_ptr<CURL, void (*)(CURL*)> easy(curl_easy_init(), curl_easy_cleanup);
  const std::unique_ptr<CURLM, CURLMcode (*)(CURLM*)> multi(curl_multi_init(), curl_multi_cleanup);
  if (!easy || !multi) return dispatch::io_error("libcurl: out of memory");
  const std::string who = "POST to " + host_of(request.url) + ": ";
  Transfer t;
  t.request = &request;
  t.easy = easy.get();

  curl_slist* list = nullptr;
  for (const std::string& h : request.headers) list = curl_slist_append(list, h.c_str());
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(list, curl_slist_free_all);
  char error[CURL_ERROR_SIZE] = "";
  CURL* c = easy.get();
  curl_easy_setopt(c, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(c, CURLOPT_POSTFIELDS, request.body.c_str());
  curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_seconds * 1e3));
  curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(c, CURLOPT_WRITEDATA, &t);
  curl_easy_setopt(c, CURLOPT_ERRORBUFFER, error);
  curl_multi_add_handle(multi.get(), c);

  const auto start = SteadyClock::now();
  Status ended;
  CURLcode code = CURLE_OK;
  for (int running = 1; running > 0 && ended.ok();) {
    curl_multi_perform(multi.get(), &running);
    if (running > 0) curl_multi_poll(multi.get(), nullptr, 0, 100, nullptr);
    if (running > 0 && seconds_since(start) > request.seconds_max)
      ended = dispatch::busy(who + "no complete answer within " + std::to_string(request.seconds_max) + " s");
    else if (running > 0 && seconds_since(t.last_byte) > request.stall_seconds)
      ended = dispatch::busy(who + "nothing came for " + std::to_string(request.stall_seconds) + " s");
    else if (request.keep_going && !request.keep_going())
      ended = dispatch::busy(who + "stopped");
  }
  int left = 0;
  while (CURLMsg* m = curl_multi_info_read(multi.get(), &left))
    if (m->msg == CURLMSG_DONE) code = m->data.result;
  long status = 0;
  curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
  curl_off_t retry_after = 0;
  curl_easy_getinfo(c, CURLINFO_RETRY_AFTER, &retry_after);
  if (request.sent != nullptr) {
    curl_off_t bytes = 0;
    curl_easy_getinfo(c, CURLINFO_SIZE_UPLOAD_T, &bytes);
    *request.sent = static_cast<size_t>(bytes) >= request.body.size();
  }
  curl_multi_remove_handle(multi.get(), c);
  if (!ended.ok()) return ended;
  if (t.too_long)
    return dispatch::corrupt(who + "an answer of more than " + std::to_string(request.bytes_max) + " bytes");
  if (code != CURLE_OK && !t.answer.stopped)
    return dispatch::io_error(who + (error[0] != '\0' ? error : curl_easy_strerror(code)));
  t.answer.status = static_cast<int>(status);
  t.answer.retry_after = static_cast<double>(retry_after);
  return std::move(t.answer);
}

}  // namespace niche::evolve::proposer
