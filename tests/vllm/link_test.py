"""The way to the daemon: what is registered, and tried again."""

from daemon_case import DaemonCase, description, real_node
from kvstreamd import errors
from kvstreamd.vllm.link import Link
from kvstreamd.vllm.options import Options


class LinkTest(DaemonCase):
    """The test plays the GPU's memory."""

    def make_link(self, open_region):
        link = Link(Options.parse({"socket": self.node.socket}), "test", lambda: None)
        self.addCleanup(link.close)
        link.want(description(), 1 << 20, open_region)
        return link

    def test_a_region_that_fails_for_now_is_tried_again(self):
        failures = [errors.SessionLost("lost"), errors.DeadlineExceeded("busy")]
        region = object()

        def open_region(_client):
            if failures:
                raise failures.pop()
            return region
        link = self.make_link(open_region)
        # Not through another way for good, meanwhile.
        self.assertIsNone(link.ready)
        ready = real_node.wait(lambda: link.ready, "it is opened")
        self.assertIs(ready.region, region)
        self.assertIsNotNone(ready.buffer)

    def test_where_no_region_can_be_opened_there_is_the_buffer(self):
        asked = []
        link = self.make_link(asked.append)
        self.assertIsNone(link.ready.region)
        self.assertIsNotNone(link.ready.buffer)
        self.assertEqual(len(asked), 1)
